"""One cause from how the ranks ended: the earliest root, not the loudest line."""

from pathlib import Path

import pytest

from trainctl.job.protocol import Heartbeat, Phase
from trainctl.run.causes import CAUSES
from trainctl.run.classify import Ending, classify
from trainctl.run.exits import RankEnd


def rank(number: int, code: int | None, **fields) -> RankEnd:
    defaults = {
        "ended": 100.0,
        "pid": 1,
        "start_ticks": 1,
        "wrapper_pid": 1,
        "log": Path(f"rank-{number}.err"),
    }
    return RankEnd(rank=number, exit_code=code, **{**defaults, **fields})


def ending(*ranks: RankEnd, **fields) -> Ending:
    defaults = {
        "agent_code": 1,
        "agent_error": "",
        "stop": None,
        "stalled": None,
        "noticed_at": 101.0,
        "trained": True,
        "reached_end": None,
    }
    return Ending(ranks=ranks, **{**defaults, **fields})


def cause(found: Ending) -> str | None:
    verdict = classify(found)
    return None if verdict.cause is None else verdict.cause.name


GLOO = {
    "exception": "RuntimeError",
    "message": "[gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:4711",
}
NCCL = {"exception": "DistBackendError", "message": "NCCL error: remote process exited"}


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (-9, {}, "process.killed"),
        (-11, {}, "process.crashed"),
        (-6, {}, "process.crashed"),
        (7, {}, "exit"),
        (1, {"exception": "ValueError", "message": "bad"}, "exception"),
        (1, {"exception": "SyntaxError", "message": "invalid syntax"}, "user.code"),
        (1, {"exception": "ModuleNotFoundError", "message": "No module named 'x'"}, "user.code"),
        (1, {"exception": "TrainctlError", "message": "data.path"}, "user.config"),
        (
            1,
            {"exception": "OutOfMemoryError", "message": "CUDA out of memory. Tried to allocate"},
            "oom.device",
        ),
        (1, {"exception": "MemoryError", "message": ""}, "oom.host"),
        (1, {"exception": "OSError", "message": "[Errno 28] No space left on device: '/x'"}, "storage.full"),
        (
            1,
            {"exception": "OSError", "message": "[Errno 30] Read-only file system: '/x'"},
            "storage.readonly",
        ),
        (1, {"exception": "OSError", "message": "[Errno 5] Input/output error"}, "storage.error"),
        (
            1,
            # torch's zip writer hides ENOSPC behind this; measured with torch 2.13 on a full tmpfs
            {
                "exception": "RuntimeError",
                "message": "[enforce fail at inline_container.cc:672] . unexpected pos 640 vs 534",
            },
            "storage.full",
        ),
        (1, GLOO, "collective"),
        (17, {"verdict": "NaN at step 12"}, "numerics.rejected"),
        (16, {"verdict": "step 12"}, "numerics.disambiguate"),
        (75, {"verdict": "stopped on request at step 9"}, "stop.trainer"),
    ],
)
def test_one_rank(code: int, fields: dict, expected: str) -> None:
    assert cause(ending(rank(0, 0), rank(1, code, **fields))) == expected


def test_all_well_is_no_cause() -> None:
    assert cause(ending(rank(0, 0), rank(1, 0), agent_code=0)) is None


def test_exit_0_before_the_planned_step_is_no_success() -> None:
    assert cause(ending(rank(0, 0), rank(1, 0), agent_code=0, reached_end=False)) == "ended.early"


@pytest.mark.parametrize("noise", [GLOO, NCCL])
def test_the_killed_rank_is_named_although_its_peer_was_faster(noise: dict) -> None:
    """Sockets close before the wrapper sees the death: the peer's exception carries the earlier stamp."""
    found = classify(ending(rank(0, 1, excepted=99.9, **noise), rank(1, -9, ended=100.0)))
    assert found.cause is CAUSES["process.killed"]
    assert found.rank == 1
    assert found.failed_at == 100.0


def test_a_rank_that_torchrun_terminated_is_not_the_cause() -> None:
    found = classify(ending(rank(0, -15, ended=99.0), rank(1, 7, ended=100.0)))
    assert (found.rank, found.exit_code) == (1, 7)


def test_our_own_sigkill_is_not_the_cause() -> None:
    found = classify(
        ending(rank(0, -9, ended=111.0), rank(1, 1, ended=100.0, exception="KeyError", message="'x'"))
    )
    assert found.cause is CAUSES["exception"]
    assert found.rank == 1


def test_our_own_sigkill_does_not_outweigh_a_collective_that_failed() -> None:
    """One rank gave up waiting; the one that hung was ended by us, long after."""
    found = classify(ending(rank(0, -9, ended=111.0), rank(1, 1, ended=100.0, **NCCL)))
    assert found.cause is CAUSES["collective"]
    assert found.rank == 1


def test_the_earliest_of_equals() -> None:
    late = rank(0, 1, excepted=100.2, ended=101.0, exception="ValueError", message="second")
    early = rank(1, 1, excepted=100.1, ended=101.1, exception="ValueError", message="first")
    assert classify(ending(late, early)).detail == "ValueError: first"


@pytest.mark.parametrize(
    ("stop", "expected"), [("interrupt", "stop.interrupt"), ("terminate", "stop.terminate")]
)
@pytest.mark.parametrize("code", [75, -15, -9])
def test_an_end_that_was_asked_for(stop: str, expected: str, code: int) -> None:
    assert cause(ending(rank(0, code), rank(1, code), stop=stop, noticed_at=99.0)) == expected


@pytest.mark.parametrize("code", [0, 1, 3, -6, 143])
def test_trainers_leave_with_all_kinds_of_codes_when_asked(code: int) -> None:
    """A handler of TERM that says sys.exit(1) has not failed; what broke before the request has."""
    asked = 99.0
    assert cause(ending(rank(0, code, ended=100.0), stop="terminate", noticed_at=asked)) == "stop.terminate"
    if code:
        broke = cause(ending(rank(0, code, ended=98.0), stop="terminate", noticed_at=asked))
        assert broke != "stop.terminate"


def test_a_rank_that_was_never_started_is_torchruns_trouble() -> None:
    found = classify(ending(rank(1, 1, pid=0, ended=None), trained=False))
    assert found.cause is CAUSES["startup.torchrun"]
    assert found.file is None  # it has no log: torchrun's own says why


def test_a_failure_on_the_way_to_a_requested_stop_is_still_a_failure() -> None:
    broken = rank(1, 1, exception="OSError", message="[Errno 28] No space left on device")
    assert cause(ending(rank(0, 75), broken, stop="interrupt")) == "storage.full"


def test_torchrun_killed() -> None:
    assert cause(ending(rank(0, None), rank(1, None), agent_code=-9)) == "launcher.torchrun"


def test_torchrun_could_not_start() -> None:
    found = classify(ending(agent_code=70, agent_error="RendezvousConnectionError: no"))
    assert found.cause is CAUSES["startup.torchrun"]
    assert "RendezvousConnectionError" in found.detail


def test_a_hang_names_the_rank_that_is_behind() -> None:
    def beat(number: int, step: int, phase: Phase) -> Heartbeat:
        return Heartbeat(rank=number, pid=1, seq=2, step=step, phase=phase, monotonic_ns=0, wall_ns=0)

    ranks = [rank(n, None, heartbeat=beat(n, 41 if n == 2 else 42, Phase.STEP)) for n in range(4)]
    found = classify(ending(*ranks, stalled="no rank made progress for 60 s", agent_code=-9))
    assert found.cause is CAUSES["deadlock"]
    assert found.rank == 2
    level = [rank(n, None, heartbeat=beat(n, 42, Phase.STEP)) for n in range(4)]
    assert classify(ending(*level, stalled="x", agent_code=-9)).rank is None
    assert cause(ending(stalled="x", trained=False)) == "startup.timeout"


def test_fingerprints_forget_what_changes_between_attempts() -> None:
    texts = ["step 12 failed at 0x7f12 in /a/b.py", "step 99 failed at 0x7fff in /c/d.py", "another thing"]
    prints = [
        classify(ending(rank(0, 1, exception="ValueError", message=text))).fingerprint for text in texts
    ]
    assert prints[0] == prints[1] != prints[2]


def test_wrong_arguments_before_the_first_step() -> None:
    assert cause(ending(rank(0, 2), trained=False)) == "startup.failed"
    assert cause(ending(rank(0, 127), trained=False)) == "startup.failed"
    assert cause(ending(rank(0, 2), trained=True)) == "exit"
