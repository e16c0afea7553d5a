"""The wrapper around a rank: true exit status, its own logs, and the end of all that the rank started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainctl.host import processes
from trainctl.job.rundir import AttemptDir, RunDir
from trainctl.run import rank as wrapper_module


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    return RunDir(tmp_path / "run").new_attempt()


def start(attempt: AttemptDir, *command: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "RANK": "3", "LOCAL_RANK": "1", "TRAINCTL_AGENT_PID": str(os.getpid())}
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            wrapper_module.__file__,
            str(attempt.path),
            str(cwd or attempt.path),
            *command,
        ],
        env=environ,
        start_new_session=True,
    )


def record(attempt: AttemptDir) -> dict[str, Any]:
    return json.loads(attempt.exit_status(3).read_bytes())


def eventually(condition: Callable[[], object]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def running(attempt: AttemptDir) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        try:
            found = record(attempt)
        except (OSError, ValueError):
            return None
        return found if "pid" in found else None

    return eventually(look)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 75", 75),
        ("kill -9 $$", -9),
        ("kill -11 $$", -11),
        ("kill -15 $$", -15),
    ],
)
def test_the_true_exit_status(attempt: AttemptDir, command: str, code: int) -> None:
    """Recorded, and passed on to torchrun unchanged."""
    assert start(attempt, "sh", "-c", command).wait(20) == code
    found = record(attempt)
    assert (found["state"], found["exit_code"], found["rank"], found["local_rank"]) == ("exited", code, 3, 1)
    assert found["started"] <= found["ended"]


def test_logs_and_working_directory(attempt: AttemptDir, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    place.mkdir()
    assert start(attempt, "sh", "-c", "pwd; echo trouble >&2", cwd=place).wait(20) == 0
    assert attempt.stdout(3).read_text() == f"{place}\n"
    assert attempt.stderr(3).read_text() == "trouble\n"


def test_a_program_that_does_not_exist(attempt: AttemptDir) -> None:
    assert start(attempt, "/no/such/program").wait(20) == 127
    assert "cannot start /no/such/program: No such file" in attempt.stderr(3).read_text()


def test_a_killed_rank_is_recorded_as_killed(attempt: AttemptDir) -> None:
    process = start(attempt, "sleep", "600")
    pid = running(attempt)["pid"]
    os.kill(pid, signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    assert record(attempt)["exit_code"] == -signal.SIGKILL


def test_a_signal_to_the_group_ends_the_rank_and_not_the_record(attempt: AttemptDir) -> None:
    """torchrun signals the whole group; a rank that saves and leaves with 75 must be recorded so."""
    process = start(attempt, "sh", "-c", "trap 'exit 75' TERM; while :; do sleep 0.01; done")
    running(attempt)
    eventually(lambda: processes.read_stat(process.pid))
    time.sleep(0)
    os.killpg(process.pid, signal.SIGTERM)
    code = process.wait(20)
    assert code == record(attempt)["exit_code"]
    assert code in (75, -signal.SIGTERM)  # TERM may come before the shell has set its trap


def test_what_the_rank_left_behind_is_ended(attempt: AttemptDir) -> None:
    """Also what ran away into a session of its own, as data-loader workers and helpers do."""
    left = "import subprocess as s; print(s.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
    assert start(attempt, sys.executable, "-c", f"{left}; import os; os._exit(5)").wait(20) == 5
    pid = int(attempt.stdout(3).read_text())
    assert processes.identify(pid) is None


def test_the_rank_dies_with_its_wrapper(attempt: AttemptDir) -> None:
    process = start(attempt, "sleep", "600")
    rank = processes.identify(running(attempt)["pid"])
    assert rank is not None
    process.kill()
    process.wait(20)
    assert processes.wait_gone([rank], 20) == []


def test_the_wrapper_refuses_a_parent_that_is_not_torchrun(attempt: AttemptDir) -> None:
    environ = {**os.environ, "RANK": "3", "LOCAL_RANK": "1", "TRAINCTL_AGENT_PID": "1"}
    command = [sys.executable, "-I", "-S", wrapper_module.__file__, str(attempt.path), "/", "true"]
    assert subprocess.run(command, env=environ, timeout=20).returncode == 1
    assert not attempt.exit_status(3).exists()


def test_how_it_ended_is_written_on_a_full_disk_too(attempt: AttemptDir) -> None:
    """The record has its final size from the start, and is rewritten in place."""
    process = start(attempt, "sleep", "600")
    running(attempt)
    before = attempt.exit_status(3).stat()
    assert before.st_size == wrapper_module.RECORD_BYTES
    process.send_signal(signal.SIGCONT)
    os.kill(record(attempt)["pid"], signal.SIGTERM)
    process.wait(20)
    after = attempt.exit_status(3).stat()
    assert (after.st_size, after.st_ino, after.st_blocks) == (before.st_size, before.st_ino, before.st_blocks)
