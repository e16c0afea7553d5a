"""N steps at once equal k steps, a kill, and the rest: bit for bit, and across world sizes nearly."""

import pytest
import torch

from trainctl.job.manifest import newest_verified, verify

WIDE = {"layers": 2, "heads": 4, "kv_heads": 2, "seq_len": 16}
STEPS = 10


@pytest.fixture
def wide_plan(make_plan):
    def make(world, run, hidden=128, **train):
        settings = {"steps": STEPS, "global_batch": 6 if world == 3 else 4, **train}
        return make_plan(world, save_steps=4, run=run, model={**WIDE, "hidden": hidden}, train=settings)

    return make


# Three ranks with more weights than one gradient bucket: there the order of a sum can matter.
@pytest.mark.parametrize(("world", "hidden"), [(1, 128), (2, 128), (3, 384)])
def test_kill_and_resume_repeats_every_bit(wide_plan, start_ranks, faulty, tensors, records, world, hidden):
    straight = wide_plan(world, "straight", hidden)
    broken = wide_plan(world, "broken", hidden)
    assert set(start_ranks(straight).exits()) == {0}

    first = start_ranks(broken, faulty("kill", rank=world - 1, step=6)).exits()
    assert first[-1] == -9
    found, _ = newest_verified(broken.run.checkpoints)
    assert found is not None
    assert found[1].step == 4
    assert set(start_ranks(broken, attempt=2, resume=found[0]).exits()) == {0}

    expected, result = (tensors(plan.run.checkpoint(STEPS)) for plan in (straight, broken))
    assert expected.keys() == result.keys()
    assert [name for name in expected if not torch.equal(expected[name], result[name])] == []
    assert result["optimizer.norm.weight.step"] == STEPS
    for rank in range(world):
        whole = records(straight, "step", rank=rank)
        rest = records(broken, "step", rank=rank, attempt=2)
        assert [line["step"] for line in rest] == list(range(5, STEPS + 1))
        for key in ("loss", "grad_norm", "lr", "sample_ids"):
            assert [line[key] for line in rest] == [line[key] for line in whole[4:]]
        name = f"random-rank-{rank}.json"
        paths = [plan.run.checkpoint(STEPS) / name for plan in (straight, broken)]
        assert paths[0].read_bytes() == paths[1].read_bytes()
    restored = records(broken, "restore", attempt=2)
    assert [line["step"] for line in restored] == [4]
    evaluations = [records(plan, "evaluation", attempt=n)[-1] for plan, n in ((straight, 1), (broken, 2))]
    assert evaluations[0]["loss"] == evaluations[1]["loss"]


def test_checkpoints_change_the_number_of_ranks(wide_plan, start_ranks, records, tensors):
    """1 -> 2 and 2 -> 1: the same samples in the same steps, so the same losses but for rounding."""
    plans = {world: wide_plan(world, f"from-{world}") for world in (1, 2)}
    for plan in plans.values():
        assert set(start_ranks(plan).exits()) == {0}
    losses = {world: [line["loss"] for line in records(plan, "step")] for world, plan in plans.items()}
    assert losses[1] == pytest.approx(losses[2], rel=1e-4)
    for old, new in ((1, 2), (2, 1)):
        plan = wide_plan(new, f"from-{old}")
        resume = plan.run.checkpoint(4)
        assert set(start_ranks(plan, attempt=2, resume=resume).exits()) == {0}
        rest = [line["loss"] for line in records(plan, "step", attempt=2)]
        assert rest == pytest.approx(losses[old][4:], rel=1e-4)
        manifest = verify(plan.run.checkpoint(STEPS))
        assert not isinstance(manifest, str)
        assert manifest.world == new


def test_data_of_replicas_is_written_once(wide_plan, start_ranks, tensors):
    """The shards of two ranks together are one copy, shared about evenly."""
    plan = wide_plan(2, "once", steps=2)
    assert set(start_ranks(plan).exits()) == {0}
    directory = plan.run.checkpoint(2)
    sizes = [path.stat().st_size for path in directory.glob("*.distcp")]
    unique = sum(value.numel() * value.element_size() for value in tensors(directory).values())
    assert len(sizes) == 2
    assert unique <= sum(sizes) <= 1.05 * unique
    assert min(sizes) > 0.3 * sum(sizes)
