"""From how the ranks ended to one cause. Pure: the same evidence always gives the same verdict.

The earliest root counts, not the loudest line: when one rank dies, all others report broken
connections and SIGTERM a moment later, and some of them are faster at it than the dead one.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from trainctl.exitcodes import PayloadExit
from trainctl.run.causes import CAUSES, Cause
from trainctl.run.exits import RankEnd

_USER_CODE = {
    "SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError",
    "NameError", "UnboundLocalError",
}  # fmt: skip
_COLLECTIVE = re.compile(
    r"connection (closed|reset|refused)|connectFullMesh|gloo|NCCL|ncclComm|ProcessGroup|process group"
    r"|Broken pipe|Socket Timeout|timed out waiting|Watchdog caught|DistBackendError|recvValue failed",
    re.IGNORECASE,
)
# torch reports a full disk as a RuntimeError of its zip writer, without an errno
_FULL = re.compile(
    r"No space left on device|Disk quota exceeded|inline_container\.cc.*unexpected pos|file write failed"
)
_READ_ONLY = re.compile(r"Read-only file system")
_STORAGE = re.compile(
    r"Input/output error|Stale file handle|Transport endpoint is not connected|Remote I/O error"
)
_DEVICE_OOM = re.compile(
    r"CUDA out of memory|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
)
_CRASH = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSYS,
    signal.SIGTRAP,
}
_VOLATILE = re.compile(r"0x[0-9a-f]+|\d+|/[^\s:'\"]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What the supervisor saw of one attempt. Times are unix seconds.

    stop: "interrupt" or "terminate" when an operator asked for the end. stalled: the watchdog's
    limit was passed, with the last phase in words. agent_code: exit code of torchrun, negative for a
    signal. trained: whether any rank completed a step in this attempt.
    """

    ranks: tuple[RankEnd, ...]
    agent_code: int | None
    agent_error: str
    stop: str | None
    stalled: str | None
    noticed_at: float | None
    trained: bool
    reached_end: bool | None  # None: the trainer does not say what its last step is


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One cause, or none when the planned end was reached. `detail` is one line for people."""

    cause: Cause | None
    detail: str = ""
    rank: int | None = None
    failed_at: float | None = None
    fingerprint: str = ""
    file: Path | None = None
    exit_code: int = 0


def classify(ending: Ending) -> Verdict:
    """Name the cause of the end of one attempt."""
    codes = [rank.exit_code for rank in ending.ranks]
    if codes and all(code == 0 for code in codes) and ending.agent_code == 0:
        if ending.reached_end is False:
            return _verdict("ended.early", "every rank ended with exit code 0", None)
        return Verdict(cause=None)
    if ending.stalled is not None:
        name = "deadlock" if ending.trained else "startup.timeout"
        return _verdict(name, ending.stalled, _slowest(ending.ranks))
    culprit = find_culprit(ending)
    found = _without_culprit(ending) if culprit is None else _from_rank(culprit, ending)
    if ending.stop is not None and _was_the_stop(culprit, found, ending):
        return _verdict(f"stop.{ending.stop}", culprit.verdict if culprit else "", culprit)
    return found


def find_culprit(ending: Ending) -> RankEnd | None:
    """The rank that broke first, among those with the most telling kind of end."""
    failed = [rank for rank in ending.ranks if rank.exit_code not in (0, None)]
    if not failed:
        return None
    strength = {rank.rank: _noise(rank, ending) for rank in failed}
    strongest = min(strength.values())
    candidates = [rank for rank in failed if strength[rank.rank] == strongest]
    return min(candidates, key=lambda rank: (rank.failed_at or float("inf"), rank.rank))


def _noise(rank: RankEnd, ending: Ending) -> int:
    """0: broke by itself. 1: a collective failed under it. 2: saved and left. 3: was told to end."""
    code = rank.exit_code or 0
    if code == -signal.SIGTERM:
        return 3
    late = ending.noticed_at is not None and rank.ended is not None and rank.ended > ending.noticed_at
    if code == -signal.SIGKILL and late:
        return 3  # our own teardown
    if code == PayloadExit.STOPPED:
        return 2
    if code < 0 or code in (PayloadExit.DISAMBIGUATE, PayloadExit.REJECTED):
        return 0
    text = f"{rank.exception}: {rank.message}"
    return 1 if rank.exception and _COLLECTIVE.search(text) else 0


def _was_the_stop(culprit: RankEnd | None, found: Verdict, ending: Ending) -> bool:
    """Whether an end after a request was the request's doing: trainers leave with all kinds of codes.

    What broke before it, or for want of space or memory while it saved, is a failure still.
    """
    assert found.cause is not None
    if culprit is None or culprit.exit_code == PayloadExit.STOPPED:
        return True
    if found.cause.name.partition(".")[0] in ("storage", "oom"):
        return False
    asked, ended = ending.noticed_at, culprit.failed_at
    return asked is None or ended is None or ended >= asked


def _without_culprit(ending: Ending) -> Verdict:
    if ending.agent_code is not None and ending.agent_code < 0:
        return _verdict("launcher.torchrun", signal_name(-ending.agent_code), None)
    if ending.agent_error or not ending.ranks:
        return _verdict("startup.torchrun", ending.agent_error or "no rank was started", None)
    return _verdict("unknown", f"torchrun ended with exit code {ending.agent_code}", None)


def _from_rank(rank: RankEnd, ending: Ending) -> Verdict:
    code = rank.exit_code or 0
    text = f"{rank.exception}: {rank.message}" if rank.exception else ""
    if not rank.pid:
        return _verdict("startup.torchrun", f"rank {rank.rank} could not be started", None)
    if code < 0:
        number = -code
        name = (
            "process.killed" if number == signal.SIGKILL
            else "process.terminated" if number == signal.SIGTERM
            else "process.crashed" if number in _CRASH
            else "unknown"
        )  # fmt: skip
        return _verdict(name, signal_name(number), rank)
    if code == PayloadExit.STOPPED:
        return _verdict("stop.trainer", rank.verdict, rank)
    if code == PayloadExit.REJECTED:
        return _verdict("numerics.rejected", rank.verdict, rank)
    if code == PayloadExit.DISAMBIGUATE:
        return _verdict("numerics.disambiguate", rank.verdict, rank)
    for name, pattern in (
        ("oom.device", _DEVICE_OOM),
        ("storage.full", _FULL),
        ("storage.readonly", _READ_ONLY),
        ("storage.error", _STORAGE),
    ):
        if pattern.search(text):
            return _verdict(name, text, rank)
    if rank.exception == "OutOfMemoryError":
        return _verdict("oom.device", text, rank)
    if rank.exception == "MemoryError":
        return _verdict("oom.host", text, rank)
    if rank.exception in _USER_CODE:
        return _verdict("user.code", text, rank)
    if rank.exception == "TrainctlError":
        return _verdict("user.config", text, rank)
    if text and _COLLECTIVE.search(text):
        return _verdict("collective", text, rank)
    if text:
        return _verdict("exception", text, rank)
    if code in (2, 126, 127) and not ending.trained:
        return _verdict("startup.failed", f"exit code {code}, {_USAGE_CODES[code]}", rank)
    return _verdict("exit", f"exit code {code}", rank)


_USAGE_CODES = {
    2: "which programs use for wrong arguments",
    126: "the program is not executable",
    127: "the program was not found",
}


def _slowest(ranks: tuple[RankEnd, ...]) -> RankEnd | None:
    """The rank with the lowest (step, phase), when it alone is behind."""
    beats = [(rank.heartbeat.step, rank.heartbeat.phase, rank) for rank in ranks if rank.heartbeat]
    if not beats:
        return None
    lowest = min((step, phase) for step, phase, _ in beats)
    behind = [rank for step, phase, rank in beats if (step, phase) == lowest]
    return behind[0] if len(behind) == 1 and len(beats) > 1 else None


def _verdict(name: str, detail: str, rank: RankEnd | None) -> Verdict:
    detail = " ".join(detail.split())[:500]
    return Verdict(
        cause=CAUSES[name],
        detail=detail,
        rank=None if rank is None else rank.rank,
        failed_at=None if rank is None else rank.failed_at,
        fingerprint=f"{name}:{_VOLATILE.sub('#', detail)[:200]}",
        file=None if rank is None else rank.log,
        exit_code=0 if rank is None or rank.exit_code is None else rank.exit_code,
    )


def signal_name(number: int) -> str:
    """9 -> "SIGKILL"; unknown numbers as they are."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
