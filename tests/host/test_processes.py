"""Processes by pid and start time: real ones, and nothing but those that were meant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from trainctl.host import processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, "TRAINCTL_TEST_MARK": "this one"})
    yield child
    child.kill()
    child.wait()


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_identity_and_life(sleeper: subprocess.Popen[bytes]) -> None:
    process = processes.identify(sleeper.pid)
    assert process is not None
    assert processes.is_alive(process)
    assert not processes.is_alive(replace(process, start_ticks=process.start_ticks - 1))
    sleeper.kill()
    # not waited for: a zombie, which is not alive although the pid exists
    eventually(lambda: not processes.is_alive(process))
    stat = processes.read_stat(sleeper.pid)
    assert stat is not None
    assert stat.state == "Z"
    sleeper.wait()
    assert processes.identify(sleeper.pid) is None


def test_a_recycled_pid_is_not_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    process = processes.identify(sleeper.pid)
    assert process is not None
    impostor = replace(process, start_ticks=process.start_ticks + 1)
    assert processes.send_signal(impostor, signal.SIGKILL) is False
    assert sleeper.poll() is None
    assert processes.send_signal(process, signal.SIGKILL) is True
    assert sleeper.wait(20) == -signal.SIGKILL
    assert processes.send_signal(process, signal.SIGKILL) is False


def test_without_pidfd_the_start_time_has_to_do(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels before 5.3 and some containers have no pidfd; signals must arrive all the same."""

    def missing(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    process = processes.identify(sleeper.pid)
    assert process is not None
    impostor = replace(process, start_ticks=process.start_ticks + 1)
    assert processes.send_signal(impostor, signal.SIGKILL) is False
    assert processes.send_signal(process, signal.SIGTERM) is True
    assert sleeper.wait(20) == -signal.SIGTERM


def test_descendants_have_no_secrets(sleeper: subprocess.Popen[bytes]) -> None:
    """Found by parentage alone, at any depth, zombies left out."""
    code = "import subprocess, sys; subprocess.Popen(['sleep', '600'], env={}); sys.stdin.read()"
    middle = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        eventually(lambda: [s.command for s in processes.descendants(middle.pid)] == ["sleep"])
        below = {stat.process.pid for stat in processes.descendants(os.getpid())}
        (grandchild,) = processes.descendants(middle.pid)
        assert {sleeper.pid, middle.pid, grandchild.process.pid} <= below
    finally:
        for stat in processes.descendants(middle.pid):
            processes.send_signal(stat.process, signal.SIGKILL)
        middle.communicate(b"")


def test_found_by_environment_but_never_ourselves(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(value: str | None) -> list[int]:
        return [stat.process.pid for stat in processes.find_by_environment("TRAINCTL_TEST_MARK", value)]

    eventually(lambda: found("this one") == [sleeper.pid])
    assert found(None) == [sleeper.pid]
    assert found("this") == []
    # the same variable in this process and its ancestors makes nobody a target
    assert os.getpid() in processes.ancestors(os.getpid())
    code = (
        "from trainctl.host import processes; "
        "print(len(processes.find_by_environment('TRAINCTL_TEST_MARK', 'parent and child')))"
    )
    monkeypatch.setenv("TRAINCTL_TEST_MARK", "parent and child")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_command_names_with_parentheses_do_not_confuse(tmp_path) -> None:
    directory = tmp_path / "77"
    directory.mkdir()
    fields = ["S", "5", "77", "66", *["0"] * 15, "4711", *["0"] * 20]
    (directory / "stat").write_text(f"77 (a) b (c)) {' '.join(fields)}\n")
    stat = processes.read_stat(77, tmp_path)
    assert stat is not None
    assert (stat.command, stat.state, stat.parent_pid, stat.session) == ("a) b (c)", "S", 5, 66)
    assert stat.process == processes.Process(77, 4711)


def test_a_subreaper_adopts_and_reaps() -> None:
    code = """
import os, subprocess, sys, time
from trainctl.host import processes
processes.become_subreaper()
# a child that leaves a grandchild behind
leave = "import subprocess as s; print(s.Popen(['sleep', '600'], stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"
middle = subprocess.run([sys.executable, "-c", leave], stdout=subprocess.PIPE, text=True)
orphan = int(middle.stdout)
stat = processes.read_stat(orphan)
assert stat.parent_pid == os.getpid(), stat
os.kill(orphan, 9)
left = processes.wait_gone([stat.process], 20)
assert left == [], left
deadline = time.monotonic() + 20
while processes.identify(orphan) is not None:
    processes.reap_adopted()
    assert time.monotonic() < deadline
print("reaped")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "reaped", done.stderr


def test_death_with_the_parent() -> None:
    code = """
import os, signal, subprocess, sys, time
child = "import os, signal, sys, time; from trainctl.host.processes import die_with_parent; " \\
        "print(die_with_parent(signal.SIGTERM, int(sys.argv[1])), os.getpid(), flush=True); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child, str(os.getpid())], stdout=subprocess.PIPE, text=True)
print(process.stdout.readline().strip(), flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    armed, pid = done.stdout.split()
    assert armed == "True"
    process = processes.identify(int(pid))
    assert process is None or processes.wait_gone([process], 20) == []


def test_a_parent_that_is_gone_already_is_noticed() -> None:
    code = (
        "import signal; from trainctl.host.processes import die_with_parent; "
        "print(die_with_parent(signal.SIGTERM, 1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
