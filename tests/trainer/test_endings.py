"""How a trainer ends: done, asked to stop, an exception, refusals. Real ranks."""

import json
import signal
import time

import pytest

from trainctl.job.manifest import Manifest, newest_verified, verify
from trainctl.job.protocol import Phase, read_heartbeat

ENDLESS = {"steps": 1_000_000, "log_interval": 1000}


def beating(plan, rank, step=3):
    beat = read_heartbeat(plan.run.attempt(1).heartbeat(rank))
    return beat is not None and beat.step >= step


def report(plan, rank, attempt=1):
    return json.loads(plan.run.attempt(attempt).exit_report(rank).read_text())


def test_run_to_the_end_evaluates_saves_and_says_so(make_plan, start_ranks, records):
    plan = make_plan(2, save_steps=4, train={"eval_interval": 3})
    ranks = start_ranks(plan)
    assert ranks.exits() == [0, 0], ranks.outputs
    assert [line["step"] for line in records(plan, "step")] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in records(plan, "evaluation")] == [3, 6]
    assert [line["step"] for line in records(plan, "checkpoint", rank=1)] == [4, 6]
    ids = [line["sample_ids"] for rank in (0, 1) for line in records(plan, "step", rank=rank)]
    assert len({sample for part in ids for sample in part}) == 6 * 4  # nothing read twice
    line = records(plan, "step")[2]
    assert line["tokens"] == 2 * 2 * 16
    assert line["peak_memory_bytes"] > 1 << 20
    assert set(line["phases"]) == {"data", "compute", "wait"}
    assert sum(line["phases"].values()) <= line["seconds"] * 1.01
    out, err = ranks.outputs[0]
    assert "step 6/6 · loss " in out
    assert "byte-frequency entropy of the text" in out
    assert ranks.outputs[1][0] == ""
    assert "Warning" not in err
    beat = read_heartbeat(plan.run.attempt(1).heartbeat(0))
    assert beat is not None
    assert (beat.phase, beat.step) == (Phase.DONE, 6)

    again = start_ranks(plan, attempt=2, resume=plan.run.checkpoint(6))
    assert again.exits() == [0, 0]
    assert "is the last one already" in again.outputs[0][0]
    assert not records(plan, "evaluation", attempt=2)


def test_terminated_rank_makes_all_save_the_same_step(make_plan, start_ranks, until, records):
    """Only rank 1 is told, and told again and again while it saves."""
    plan = make_plan(2, train=ENDLESS)
    ranks = start_ranks(plan)
    until(lambda: beating(plan, 0))
    while ranks.processes[1].poll() is None:
        ranks.processes[1].send_signal(signal.SIGTERM)
        time.sleep(0.002)
    assert ranks.exits() == [75, 75], ranks.outputs
    found, torn = newest_verified(plan.run.checkpoints)
    assert found is not None
    assert torn == []
    for rank in (0, 1):
        assert report(plan, rank)["code"] == 75
        assert report(plan, rank)["step"] == found[1].step
        assert records(plan, "step", rank=rank)[-1]["step"] == found[1].step
        assert len(records(plan, "checkpoint", rank=rank)) == 1
    assert f"stopped on request at step {found[1].step:,}" in report(plan, 0)["verdict"]


def test_request_of_an_operator_stops_and_saves(make_plan, start_ranks, until):
    plan = make_plan(train=ENDLESS)
    ranks = start_ranks(plan)
    until(lambda: beating(plan, 0))
    plan.run.stop_request.parent.mkdir()
    plan.run.stop_request.touch()
    assert ranks.exits() == [75]
    assert isinstance(verify(plan.run.checkpoint(report(plan, 0)["step"])), Manifest)


def test_exception_is_persisted_and_the_exit_does_not_hang(make_plan, start_ranks, faulty):
    plan = make_plan(2, train=ENDLESS)
    ranks = start_ranks(plan, faulty("raise", rank=1, step=3))
    assert ranks.exits() == [1, 1]
    assert report(plan, 1)["exception"] == "RuntimeError"
    assert report(plan, 1)["message"] == "a fault of the test"
    assert "a fault of the test" in ranks.outputs[1][1]
    beat = read_heartbeat(plan.run.attempt(1).heartbeat(1))
    assert beat is not None
    assert beat.note == "RuntimeError: a fault of the test"
    assert report(plan, 1)["time"] < report(plan, 0)["time"]  # rank 0 lost its peer afterwards


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"data": {"path": "absent"}}, "absent does not exist"),
        ({"parallel": {"tp": 2}}, "tp = 2"),
        ({"train": {"global_batch": 3}}, "not a multiple"),
    ],
)
def test_refusals_are_plain_words_and_reports(make_plan, start_ranks, sections, words):
    plan = make_plan(2 if "parallel" in sections else 1, **sections)
    plan = plan.model_copy()
    ranks = start_ranks(plan)
    assert set(ranks.exits()) == {1}
    _, err = ranks.outputs[0]
    assert words in err
    assert "next: " in err
    assert "Traceback" not in err
    assert report(plan, 0)["exception"] == "TrainctlError"
