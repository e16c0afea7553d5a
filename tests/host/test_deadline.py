"""Readers in children: whatever happens to one of them stays there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from trainctl.host.deadline import read_all
from trainctl.host.facts import Gpu


def _answers() -> Gpu:
    return Gpu(index=3, name="x" * 300_000)  # more than a pipe holds


def _raises() -> Gpu:
    raise ValueError("odd")


def _fails_on_a_file() -> Gpu:
    raise PermissionError(13, "Permission denied", "/some/file")


def _dies() -> Gpu:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def _exits() -> Gpu:
    raise SystemExit(3)


def test_each_reader_ends_in_its_own_way() -> None:
    readings = read_all(
        {"answers": _answers, "raises": _raises, "file": _fails_on_a_file, "dies": _dies, "exits": _exits},
        30.0,
    )
    assert readings["answers"]["value"] == _answers().model_dump(mode="json")
    assert readings["answers"]["error"] == ""
    assert readings["raises"]["error"] == "ValueError: odd"
    assert readings["file"]["error"] == "/some/file: Permission denied"
    assert readings["dies"]["error"] == "the reader died before it answered"
    assert readings["exits"]["error"] == "the reader died before it answered"


def test_a_late_reader_is_killed_and_collected(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def sleeps() -> Gpu:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        note.write_text(str(os.getpid()))
        time.sleep(3600)
        return Gpu(index=0)

    readings = read_all({"late": sleeps}, 1.0)
    assert readings["late"] == {"error": "no answer in 1 s", "seconds": 1.0}
    assert not Path("/proc", note.read_text()).exists()


def test_no_descriptor_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    read_all({"answers": _answers, "dies": _dies}, 30.0)
    assert len(os.listdir("/proc/self/fd")) == before
