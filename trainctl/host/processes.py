"""Processes of this machine, named so that a recycled pid can never be mistaken for the old one.

Reads /proc directly where psutil would race (state, start time and environment must come from one
moment). Must not decide whom to end: it offers to signal exactly one recorded process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """One process for ever: a pid alone is recycled, a pid with its start time is not.

    start_ticks: clock ticks between boot and the process' start (field 22 of /proc/PID/stat).
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """One line of /proc/PID/stat. state is the letter of ps: R, S, D, Z, T, ..."""

    process: Process
    state: str
    parent_pid: int
    session: int
    command: str


def read_stat(pid: int, proc: Path = PROC) -> Stat | None:
    """What the kernel says about `pid` now; None when there is no such process."""
    try:
        raw = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # the command may hold blanks and parentheses: the last ')' ends it
    command, _, rest = raw.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Stat(
        process=Process(pid, int(fields[19])),
        state=fields[0],
        parent_pid=int(fields[1]),
        session=int(fields[3]),
        command=command,
    )


def identify(pid: int) -> Process | None:
    """The process that has `pid` now."""
    stat = read_stat(pid)
    return None if stat is None else stat.process


def is_alive(process: Process, proc: Path = PROC) -> bool:
    """Whether it still runs. A zombie does not: it only waits to be reaped."""
    stat = read_stat(process.pid, proc)
    return stat is not None and stat.process == process and stat.state not in ("Z", "X")


def send_signal(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone or not ours to signal.

    The pidfd pins the pid while the start time is compared, so a recycled pid is never hit.
    """
    descriptor = None
    try:
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        except OSError:
            pass  # a kernel before 5.3, or a container that forbids it: the start time has to do
        if identify(process.pid) != process:
            return False
        if descriptor is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(descriptor, number)
        return True
    except OSError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)


def all_pids(proc: Path = PROC) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdigit()]


def environment_value(pid: int, name: str, proc: Path = PROC) -> str | None:
    """One variable of another process' initial environment; None when absent or not readable."""
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = name.encode() + b"="
    for entry in raw.split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :].decode(errors="replace")
    return None


def find_by_environment(name: str, value: str | None = None, proc: Path = PROC) -> list[Stat]:
    """Live processes whose environment has `name` (with `value`), except this one and its ancestors.

    The environment is inherited, so this finds DataLoader workers and anything else a rank
    started, also when its parent is long dead.
    """
    spared = set(ancestors(os.getpid(), proc))
    found = []
    for pid in all_pids(proc):
        if pid in spared:
            continue
        has = environment_value(pid, name, proc)
        if has is None or (value is not None and has != value):
            continue
        stat = read_stat(pid, proc)
        if stat is not None and stat.state not in ("Z", "X"):
            found.append(stat)
    return found


def ancestors(pid: int, proc: Path = PROC) -> list[int]:
    """`pid` itself, its parent, and so on up to init."""
    chain = []
    while pid > 0 and pid not in chain:
        chain.append(pid)
        stat = read_stat(pid, proc)
        pid = stat.parent_pid if stat else 0
    return chain


def children(pid: int, proc: Path = PROC) -> list[int]:
    """Direct children of every thread of `pid`."""
    found: list[int] = []
    try:
        threads = os.listdir(proc / str(pid) / "task")
    except OSError:
        return found
    for thread in threads:
        try:
            raw = (proc / str(pid) / "task" / thread / "children").read_text()
        except OSError:
            continue
        found.extend(int(child) for child in raw.split())
    return found


def descendants(pid: int, proc: Path = PROC) -> list[Stat]:
    """Everything below `pid` that lives, whatever its environment says."""
    found: list[Stat] = []
    waiting = children(pid, proc)
    while waiting:
        child = waiting.pop()
        stat = read_stat(child, proc)
        if stat is not None and stat.state not in ("Z", "X"):
            found.append(stat)
        waiting.extend(children(child, proc))
    return found


def reap_adopted(except_pids: Iterable[int] = ()) -> None:
    """Collect dead children that were adopted as a subreaper; unreaped ones look alive to others.

    except_pids: children that somebody else waits for, such as a `Popen`.
    """
    spared = set(except_pids)
    for child in children(os.getpid()):
        if child not in spared:
            try:
                os.waitpid(child, os.WNOHANG)
            except ChildProcessError:
                continue


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: signal.Signals, parent_pid: int) -> bool:
    """Arrange that the kernel sends `number` when the creating thread ends; False if it already did."""
    _prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent_pid


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def wait_gone(processes: Iterable[Process], timeout_s: float, period_s: float = 0.02) -> list[Process]:
    """Those still alive after at most `timeout_s`. Reaps adopted children on the way."""
    deadline = time.monotonic() + timeout_s
    left = [process for process in processes if is_alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(period_s)
        left = [process for process in left if is_alive(process)]
    return left
