import json


def test_rehearsal_measures_and_leaves_no_trace(make_plan, start_ranks, tmp_path):
    plan = make_plan(2, train={"global_batch": 8})
    out = tmp_path / "warmup"
    ranks = start_ranks(plan, ["-m", "payload.warmup", str(out)])
    assert ranks.exits() == [0, 0], ranks.outputs
    measured = json.loads((out / "warmup.json").read_text())
    assert set(measured) == {
        "step_s", "save_s", "load_s", "checkpoint_bytes", "peak_memory_bytes", "tokens_per_step",
    }  # fmt: skip
    assert measured["tokens_per_step"] == 8 * 16
    assert len(measured["peak_memory_bytes"]) == 2
    assert all(value > 0 for value in (measured["step_s"], measured["save_s"], measured["load_s"]))
    assert measured["checkpoint_bytes"] > 100_000
    left = [p.relative_to(plan.run.path).as_posix() for p in plan.run.path.rglob("*") if p.is_file()]
    assert not [name for name in left if "checkpoint" in name]  # it beats, and that is all
    assert [p.name for p in out.rglob("*") if p.is_file()] == ["warmup.json"]


def test_rehearsal_refuses_in_plain_words(make_plan, start_ranks, tmp_path):
    ranks = start_ranks(make_plan(data={"path": "absent"}), ["-m", "payload.warmup", str(tmp_path / "out")])
    assert ranks.exits() == [1]
    assert "absent does not exist" in ranks.outputs[0][1]
    assert not (tmp_path / "out").exists()
