"""What a trainer and the launcher say to each other: heartbeat, step record, exit report.

Standard library only, no torch, no pydantic: it is imported by other people's trainers.
It must not know where files live (see `rundir`).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

# Environment variables that the launcher sets for every rank. Single underscores: names with a
# double underscore (TRAINCTL_TRAIN__LR) are configuration overrides.
ENV_RUN_DIR = "TRAINCTL_RUN_DIR"
ENV_RUN_ID = "TRAINCTL_RUN_ID"  # inherited by every descendant, so that leftovers can be recognised
ENV_ATTEMPT = "TRAINCTL_ATTEMPT"
ENV_RESUME = "TRAINCTL_RESUME"  # checkpoint directory to load, empty for a fresh start
ENV_PLAN = "TRAINCTL_PLAN"  # plan.json of this attempt


class Phase(IntEnum):
    """What a rank is doing."""

    START = 0
    RESTORE = 1
    COMPILE = 2
    STEP = 3
    EVALUATE = 4
    CHECKPOINT = 5
    SHUTDOWN = 6
    DONE = 7


# magic, version, rank, pid | seq | step, phase, monotonic ns, wall ns | note length | note
_HEAD = struct.Struct("<4sHxxII")
_SEQ = struct.Struct("<Q")
_BODY = struct.Struct("<qIxxxxqqI")
_MAGIC = b"TCHB"
_VERSION = 1
_SEQ_AT = _HEAD.size
_BODY_AT = _SEQ_AT + _SEQ.size
_NOTE_AT = _BODY_AT + _BODY.size
HEARTBEAT_BYTES = 2048
NOTE_BYTES = HEARTBEAT_BYTES - _NOTE_AT


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One rank's last sign of life.

    step: last completed step (-1 before the first). monotonic_ns and wall_ns: when it was written,
    on the writer's host. note: first exception in one line, empty while all is well.
    """

    rank: int
    pid: int
    seq: int
    step: int
    phase: Phase
    monotonic_ns: int
    wall_ns: int
    note: str = ""

    def age_s(self, now_monotonic_ns: int | None = None) -> float:
        """Seconds since it was written; only meaningful on the writer's host and boot."""
        now = time.monotonic_ns() if now_monotonic_ns is None else now_monotonic_ns
        return max(0, now - self.monotonic_ns) / 1e9


class HeartbeatWriter:
    """A preallocated, memory-mapped record: beating costs about a microsecond and needs no space.

    A full disk or a hung file system cannot stop it. Readers on the same host see a write at once.
    The sequence number is odd while a write is under way (a seqlock), so a torn read is noticed.
    """

    def __init__(self, path: Path, rank: int, pid: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, HEARTBEAT_BYTES)
            self._map = mmap.mmap(descriptor, HEARTBEAT_BYTES)
        finally:
            os.close(descriptor)
        _HEAD.pack_into(self._map, 0, _MAGIC, _VERSION, rank, pid or os.getpid())
        self._seq = 0
        self._step = -1
        self.beat(Phase.START)

    def beat(self, phase: Phase, step: int | None = None, note: str | None = None) -> None:
        """Write one heartbeat. `step` is the last completed step; None keeps the one before."""
        if step is not None:
            self._step = step
        _SEQ.pack_into(self._map, _SEQ_AT, self._seq + 1)
        length = None
        if note is not None:
            raw = note.encode("utf-8", "replace")[:NOTE_BYTES]
            self._map[_NOTE_AT : _NOTE_AT + len(raw)] = raw
            length = len(raw)
        if length is None:
            length = _BODY.unpack_from(self._map, _BODY_AT)[4]
        _BODY.pack_into(self._map, _BODY_AT, self._step, phase, time.monotonic_ns(), time.time_ns(), length)
        self._seq += 2
        _SEQ.pack_into(self._map, _SEQ_AT, self._seq)

    def close(self) -> None:
        self._map.close()


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The heartbeat in `path`; None when absent, foreign, of another version or torn three times."""
    for _ in range(3):
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        beat = _parse(raw)
        if beat is not None:
            return beat
    return None


def _parse(raw: bytes) -> Heartbeat | None:
    if len(raw) < HEARTBEAT_BYTES:
        return None
    magic, version, rank, pid = _HEAD.unpack_from(raw, 0)
    (seq,) = _SEQ.unpack_from(raw, _SEQ_AT)
    step, phase, monotonic_ns, wall_ns, length = _BODY.unpack_from(raw, _BODY_AT)
    if magic != _MAGIC or version != _VERSION or seq % 2 or length > NOTE_BYTES:
        return None
    return Heartbeat(
        rank=rank,
        pid=pid,
        seq=seq,
        step=step,
        phase=Phase(phase) if phase in Phase._value2member_map_ else Phase.START,
        monotonic_ns=monotonic_ns,
        wall_ns=wall_ns,
        note=raw[_NOTE_AT : _NOTE_AT + length].decode("utf-8", "replace"),
    )
