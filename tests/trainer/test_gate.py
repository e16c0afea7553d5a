"""Two real ranks: a bad number on one of them must not reach a parameter on any."""

import json

import pytest
import torch

from trainctl.job.manifest import newest_verified


@pytest.fixture
def rejected(make_plan, start_ranks, faulty, tmp_path):
    """Exits and plan of a run in which one rank's number is spoiled at step 5."""

    def run(fault, rank, step=5):
        plan = make_plan(2, save_steps=3, train={"steps": 8})
        ranks = start_ranks(plan, faulty(fault, rank=rank, step=step, snapshot=tmp_path))
        return plan, ranks.exits(), ranks

    return run


@pytest.mark.parametrize(("fault", "rank"), [("nan", 1), ("poison-loss", 0)])
def test_rejected_step_leaves_every_bit_on_every_rank(rejected, tmp_path, tensors, records, fault, rank):
    plan, exits, ranks = rejected(fault, rank)
    assert exits == [17, 17], ranks.outputs
    states = {}
    for who in (0, 1):
        for moment in ("before-4", "before-5", "after-5", "after-6"):
            states[who, moment] = torch.load(tmp_path / f"rank-{who}-{moment}.pt")
    good = states[0, "before-5"]
    assert any(not torch.equal(good[name], states[0, "before-4"][name]) for name in good)
    for who in (0, 1):
        for moment in ("before-5", "after-5", "after-6"):  # 6 was launched before 5 was known to be bad
            state = states[who, moment]
            assert [name for name in good if not torch.equal(state[name], good[name])] == []
            assert all(bool(value.isfinite().all()) for value in state.values())

    for who in (0, 1):
        report = json.loads(plan.run.attempt(1).exit_report(who).read_text())
        steps = records(plan, "step", rank=who)
        assert [line["accepted"] for line in steps] == [True] * 4 + [False]
        assert report["code"] == 17
        assert report["invalid_ranks"] == [rank]
        assert f"rank {rank}" in report["verdict"]
        assert "step 5" in report["verdict"]
        assert report["sample_ids"] == steps[-1]["sample_ids"]
    assert len({len(line["sample_ids"]) for line in steps}) == 1

    found, _ = newest_verified(plan.run.checkpoints)
    assert found is not None
    path, manifest = found
    assert manifest.step == 4  # newer than the one saved at step 3
    saved = tensors(path)
    assert [name for name in good if not torch.equal(saved[name], good[name])] == []
    assert json.loads((path / "progress.json").read_text())["samples"] == 4 * plan.global_batch


def test_damaged_parameters_are_not_made_durable(rejected, tensors):
    """A weight turns NaN after step 4 was accepted: step 5 is rejected, and saving "the good step 4" would
    make the damage the newest checkpoint, which verifies and is loaded for ever."""
    plan, exits, ranks = rejected("damage", 1, step=4)
    assert exits == [17, 17], ranks.outputs
    report = json.loads(plan.run.attempt(1).exit_report(0).read_text())
    assert "step 5 rejected" in report["verdict"]
    assert "damaged" in report["verdict"]
    found, _ = newest_verified(plan.run.checkpoints)
    assert found is not None
    assert found[1].step == 3
    assert all(bool(value.isfinite().all()) for value in tensors(found[0]).values())
