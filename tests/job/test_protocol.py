"""Heartbeats: what is written is read, a torn write is never believed, a full disk is no obstacle."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from trainctl.job.protocol import HEARTBEAT_BYTES, NOTE_BYTES, HeartbeatWriter, Phase, read_heartbeat


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rank-3"
    writer = HeartbeatWriter(path, 3)
    beat = read_heartbeat(path)
    assert beat is not None
    assert (beat.rank, beat.pid, beat.step, beat.phase) == (3, os.getpid(), -1, Phase.START)
    writer.beat(Phase.STEP, 41)
    first = read_heartbeat(path)
    writer.beat(Phase.CHECKPOINT)
    second = read_heartbeat(path)
    assert first is not None
    assert second is not None
    assert (second.step, second.phase) == (41, Phase.CHECKPOINT)  # the step stays until there is a new one
    assert second.seq > first.seq
    assert second.monotonic_ns >= first.monotonic_ns
    assert first.age_s(first.monotonic_ns + 2_500_000_000) == 2.5


def test_a_note_stays_and_is_cut_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "rank-0"
    writer = HeartbeatWriter(path, 0)
    writer.beat(Phase.SHUTDOWN, note="ValueError: ä" + "x" * 3000)
    writer.beat(Phase.DONE)
    beat = read_heartbeat(path)
    assert beat is not None
    assert beat.note.startswith("ValueError: ä")
    assert len(beat.note.encode()) == NOTE_BYTES
    assert path.stat().st_size == HEARTBEAT_BYTES


def test_a_write_under_way_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "rank-0"
    HeartbeatWriter(path, 0).beat(Phase.STEP, 7)
    beat = read_heartbeat(path)
    assert beat is not None
    raw = bytearray(path.read_bytes())
    at = raw.index(struct.pack("<Q", beat.seq))
    raw[at : at + 8] = struct.pack("<Q", beat.seq + 1)  # odd: begun, not finished
    path.write_bytes(raw)
    assert read_heartbeat(path) is None


@pytest.mark.parametrize("raw", [b"", b"hello", bytes(HEARTBEAT_BYTES), b"TCHB" + b"\xff" * HEARTBEAT_BYTES])
def test_foreign_files_are_no_heartbeats(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "rank-0"
    path.write_bytes(raw)
    assert read_heartbeat(path) is None
    assert read_heartbeat(tmp_path / "absent") is None


def test_another_process_sees_a_beat_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rank-0"
    code = (
        "import sys; from pathlib import Path; from trainctl.job.protocol import *; "
        "HeartbeatWriter(Path(sys.argv[1]), 0).beat(Phase.STEP, 5); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        import time

        deadline = time.monotonic() + 20
        while (beat := read_heartbeat(path)) is None or beat.step != 5:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert beat.pid == child.pid
    finally:
        child.communicate(b"")
