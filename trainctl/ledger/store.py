"""The ledger on disk: one file of JSON lines a run, appended by the launcher of that run only.

One writer a file needs no locks, which shared file systems break. A torn line, from a crash or a full
disk, loses that line only and is reported. Must not judge what the records mean.
"""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trainctl.errors import TrainctlError
from trainctl.job.rundir import fsync_directory

SCHEMA: Literal[1] = 1
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _Record(BaseModel):
    """Fields that a newer trainctl adds are ignored; a changed meaning comes with a new version."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    version: Literal[1] = SCHEMA
    run_id: str
    job: str
    attempt: int  # counts up within a run
    time: float  # unix seconds


class AttemptStart(_Record):
    """torchrun was spawned."""

    event: Literal["attempt_start"] = "attempt_start"
    begin: float | None = None  # unix seconds: end of the attempt before, or start of the launch
    hosts: tuple[str, ...]
    world: int
    device: str  # "cpu" or "cuda"
    config_digest: str
    identity_digest: str
    resumed_step: int = 0  # completed steps in the checkpoint it came from, 0 from scratch
    resumed_from: str = ""  # name of that checkpoint's directory
    save_steps: int
    restart_of: bool = False  # follows a failure in the same launch


class AttemptEnd(_Record):
    """torchrun is gone and the attempt is understood.

    Steps count completed optimizer steps of the run, so that they compare with checkpoint names.
    Stamps are unix seconds, None where nothing was seen.
    """

    event: Literal["attempt_end"] = "attempt_end"
    exit_code: int  # 0 exactly when the planned last step was reached
    cause: str = ""  # from the closed list of causes, empty when finished
    detail: str = ""  # the cause in words
    rank: int | None = None  # the one that failed first
    fingerprint: str = ""  # equal for failures that look the same
    planned: bool = False  # stopped on purpose, nothing lost that was not meant to be
    first_step: int | None = None  # first step that this attempt completed, None for none
    last_step: int = 0  # newest completed step known at the end
    durable_step: int | None = None  # newest verified checkpoint at the end, None: trainer does not say
    first_step_at: float | None = None  # begin of the first step
    failed_at: float | None = None
    noticed_at: float | None = None
    gone_at: float | None = None  # no process of the attempt was left
    step_s: float | None = None  # median
    save_s: float | None = None  # mean time that training stood still for one save
    saves: int = 0
    buckets: dict[str, float] = Field(default_factory=dict)  # goodput.Bucket -> seconds
    reconstructed: bool = False  # written later by another launch: its own supervisor died


Event = AttemptStart | AttemptEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One torchrun. `end` is None while it runs, and for good when its supervisor died with it."""

    start: AttemptStart
    end: AttemptEnd | None

    @property
    def began(self) -> float:
        """When its wall time begins: with the launch, or where the attempt before ended."""
        return self.start.time if self.start.begin is None else self.start.begin

    @property
    def new_steps(self) -> int:
        if self.end is None or self.end.first_step is None:
            return 0
        return max(0, self.end.last_step - self.end.first_step + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A line that was not counted, and why in words."""

    file: Path
    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """Everything recorded. `attempts` are in order of their start."""

    attempts: tuple[Attempt, ...]
    problems: tuple[Problem, ...]

    def of_job(self, job: str) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.start.job == job)

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of all jobs, in order of their first attempt."""
        return tuple(dict.fromkeys(attempt.start.job for attempt in self.attempts))


def append(ledger_dir: Path, event: Event) -> None:
    """Add one line to the file of the event's run, durably.

    Raises TrainctlError when the directory cannot be written, ValueError for a run id that is not a
    file name.
    """
    if not _RUN_ID.fullmatch(event.run_id):
        raise ValueError(f"run id {event.run_id!r} cannot be a file name")
    path = ledger_dir / f"{event.run_id}.jsonl"
    try:
        ledger_dir.mkdir(parents=True, exist_ok=True)
        _append_line(path, event.model_dump_json().encode())
    except OSError as error:
        raise TrainctlError(
            "ledger-unwritable",
            f"{path} cannot be written: {error.strerror}",
            hint="set [ledger] dir to a directory that this user may write, on a disk with space",
        ) from error


def _append_line(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        rest = (b"\n" if torn else b"") + line + b"\n"
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if size == 0:
        fsync_directory(path.parent)


_E = TypeVar("_E", AttemptStart, AttemptEnd)


class _Kept(Generic[_E]):
    """One event for each attempt; which one does not depend on the order in which they are read."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], tuple[_E, tuple[Path, int]]] = {}
        self.problems: list[Problem] = []

    def add(self, event: _E, where: tuple[Path, int]) -> None:
        key = (event.run_id, event.attempt)
        if key not in self.kept:
            self.kept[key] = (event, where)
            return
        winner, loser = sorted(((event, where), self.kept[key]), key=_preference)
        self.kept[key] = winner
        if winner[0] != loser[0] and not _is_reconstructed(loser[0]):
            reason = f"attempt {event.attempt} of run {event.run_id} is recorded twice, the other one counts"
            self.problems.append(Problem(file=loser[1][0], line=loser[1][1], reason=reason))


def _preference(entry: tuple[Event, tuple[Path, int]]) -> tuple[bool, float, str]:
    """First-hand before reconstructed, early before late, then anything that is always the same."""
    event = entry[0]
    return _is_reconstructed(event), event.time, event.model_dump_json()


def _is_reconstructed(event: Event) -> bool:
    return isinstance(event, AttemptEnd) and event.reconstructed


@functools.cache
def _adapter() -> TypeAdapter[Event]:
    return TypeAdapter(Annotated[Event, Field(discriminator="event")])


def _parse(raw: bytes) -> Event | str:
    """The event, or the reason in words why the line is not counted."""
    try:
        return _adapter().validate_json(raw)
    except ValidationError as error:
        return _reason(raw, error)


def _reason(raw: bytes, error: ValidationError) -> str:
    try:
        value = json.loads(raw)
    except ValueError:
        return "torn: not a whole JSON object"
    if not isinstance(value, dict) or "event" not in value:
        return "not a record of trainctl"
    version = value.get("version")
    if isinstance(version, int) and version > SCHEMA:
        return f"written by a newer trainctl: version {version}, this one reads {SCHEMA}"
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or "event"
    return f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def read_ledger(ledger_dir: Path) -> LedgerView:
    """All attempts of all runs. An absent directory is an empty ledger.

    The order of lines and files does not matter, nor do lines that occur twice, so ledgers can be
    merged by copying or joining files. Raises TrainctlError when the directory cannot be listed.
    """
    try:
        files = sorted(path for path in ledger_dir.iterdir() if path.suffix == ".jsonl")
    except FileNotFoundError:
        files = []
    except OSError as error:
        raise TrainctlError(
            "ledger-unreadable",
            f"{ledger_dir} is not a ledger that can be read: {error.strerror}",
            hint="name the directory with the .jsonl files, usually runs/ledger",
        ) from None
    starts = _Kept[AttemptStart]()
    ends = _Kept[AttemptEnd]()
    problems: list[Problem] = []
    for path in files:
        try:
            with open(path, "rb") as file:
                for number, raw in enumerate(file, 1):
                    if not raw.strip():
                        continue
                    event = _parse(raw)
                    where = (path, number)
                    if isinstance(event, AttemptStart):
                        starts.add(event, where)
                    elif isinstance(event, AttemptEnd):
                        ends.add(event, where)
                    else:
                        problems.append(Problem(file=path, line=number, reason=event))
        except OSError as error:
            problems.append(Problem(file=path, line=0, reason=f"not readable: {error.strerror}"))
    problems += starts.problems + ends.problems
    for key, (end, (path, number)) in ends.kept.items():
        if key not in starts.kept:
            reason = f"end of attempt {end.attempt} of run {end.run_id}, whose start is not recorded"
            problems.append(Problem(file=path, line=number, reason=reason))
    attempts = [
        Attempt(start=start, end=ends.kept[key][0] if key in ends.kept else None)
        for key, (start, _) in starts.kept.items()
    ]
    return LedgerView(
        attempts=tuple(sorted(attempts, key=lambda a: (a.start.time, a.start.run_id, a.start.attempt))),
        problems=tuple(sorted(problems, key=lambda p: (p.file, p.line))),
    )
