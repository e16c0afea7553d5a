"""How every rank of an attempt ended, gathered from its files. Reads; judges nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainctl.job.protocol import Heartbeat, read_heartbeat
from trainctl.job.rundir import AttemptDir, read_json

_TAIL_BYTES = 64 * 1024
# The last line of a Python traceback, which starts at the margin: "torch.OutOfMemoryError: CUDA ..."
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch puts it before every line of its own excepthook
_MESSAGE_LINES = 20  # of one exception, and of what clean-up says after it
_EXCEPTION_LINE = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Warning|Failure|Exit|Timeout))"
    r"(?:: (?P<message>.*))?$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """One rank's end. Times are unix seconds.

    exit_code: as `subprocess` gives it (negative: signal); None while running, or when nobody was left
    to see it. ended: None when its wrapper was killed with it. exception/message: the first exception,
    from the trainer's own report or from the end of stderr. verdict: the reason given with exit code
    16, 17 or 75.
    """

    rank: int
    exit_code: int | None
    ended: float | None
    pid: int
    start_ticks: int
    wrapper_pid: int
    exception: str = ""
    message: str = ""
    traceback: tuple[str, ...] = ()
    excepted: float | None = None
    verdict: str = ""
    heartbeat: Heartbeat | None = None
    log: Path = field(default_factory=Path)

    def to_json(self) -> dict[str, Any]:
        """For the record of the attempt: what torchrun flattens to 1."""
        shown = ("rank", "exit_code", "ended", "exception", "message", "verdict")
        return {name: getattr(self, name) for name in shown}

    @property
    def failed_at(self) -> float | None:
        """When it broke: the exception if it left one, else its end."""
        times = [time for time in (self.excepted, self.ended) if time is not None]
        return min(times, default=None)


def read_status(attempt: AttemptDir, rank: int) -> dict[str, Any] | None:
    """The wrapper's record of one rank; None before it was started."""
    return read_json(attempt.exit_status(rank))


def read_ends(attempt: AttemptDir) -> tuple[RankEnd, ...]:
    """How every rank that was started ended, by rank."""
    report = read_json(attempt.agent_json) or {}
    failures = report.get("failures", {})
    return tuple(_read_end(attempt, rank, failures.get(str(rank))) for rank in attempt.ranks("exits"))


def _read_end(attempt: AttemptDir, rank: int, seen_by_torchrun: int | None) -> RankEnd:
    """seen_by_torchrun: exit code of the wrapper, which counts when the wrapper itself was killed."""
    status = read_status(attempt, rank) or {}
    report = read_json(attempt.exit_report(rank)) or {}
    heartbeat = read_heartbeat(attempt.heartbeat(rank))
    exception, message = report.get("exception", ""), report.get("message", "")
    if not exception and heartbeat is not None and heartbeat.note:
        exception, _, message = heartbeat.note.partition(": ")
    if not exception and status.get("exit_code") == 1:
        exception, message = last_exception(attempt.stderr(rank))
    return RankEnd(
        rank=rank,
        exit_code=status.get("exit_code", seen_by_torchrun),
        ended=status.get("ended"),
        pid=status.get("pid", 0),
        start_ticks=status.get("start_ticks", 0),
        wrapper_pid=status.get("wrapper_pid", 0),
        exception=exception,
        message=message,
        traceback=tuple(report.get("traceback", ())),
        excepted=report.get("time") if "exception" in report else None,
        verdict=report.get("verdict", ""),
        heartbeat=heartbeat,
        log=attempt.stderr(rank),
    )


def tail_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of a file, read from its end."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            raw = file.read()
    except OSError:
        return []
    return raw.decode("utf-8", "replace").splitlines()[-count:]


def last_exception(path: Path) -> tuple[str, str]:
    """(type, message) of the traceback with which a log ends; empty when it ends in anything else.

    A traceback that was logged and survived stands further up, and is not why the program ended.
    """
    for line in reversed(tail_lines(path, _MESSAGE_LINES)):
        if match := _EXCEPTION_LINE.match(_RANK_PREFIX.sub("", line)):
            return match["type"].rpartition(".")[2], match["message"] or ""
    return "", ""
