"""Processes of this user that earlier runs left behind, and such as hang in the kernel.

Must not end anything: it names pid, command, age and state, so that a person or `drain` can.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

import psutil

from trainctl.host.environment import SECRET_NAME
from trainctl.host.facts import LeftoverFacts, ProcessInfo
from trainctl.host.processes import ancestors, environment_value, read_stat
from trainctl.job.protocol import ENV_RUN_DIR, ENV_RUN_ID

# A transient D state is ordinary disk work: only one that is there twice counts.
_RESAMPLE_S = 0.3
_COMMAND_CHARS = 160
# What adopts orphans. Its own children are not orphans in any other sense.
_INITS = {"systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "containerd-shim"}


def describe(pid: int) -> ProcessInfo | None:
    """One process now; None when it is not visible here (gone, or outside of this container)."""
    stat = read_stat(pid)
    if stat is None:
        return None
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            uid = process.uids().real
            arguments = [] if stat.state == "Z" else process.cmdline()  # a zombie has none left
            age_s = max(0.0, time.time() - process.create_time())
            user = process.username()
    except psutil.Error:
        return None
    try:
        with open(f"/proc/{pid}/wchan") as file:
            wait_channel = file.read().strip("0\n")
    except OSError:
        wait_channel = ""
    return ProcessInfo(
        pid=pid,
        parent_pid=stat.parent_pid,
        uid=uid,
        user=user,
        ours=uid == os.getuid(),
        command=(" ".join(without_secrets(arguments)) or f"[{stat.command}]")[:_COMMAND_CHARS],
        state=stat.state,
        age_s=round(age_s, 1),
        wait_channel=wait_channel,
        run_id=environment_value(pid, ENV_RUN_ID) or "",
        run_dir=environment_value(pid, ENV_RUN_DIR) or "",
    )


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """The command line with the values of options that are named like secrets left out."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if hide_next and not argument.startswith("-"):
            shown.append("***")
        elif SECRET_NAME.search(name) and (equals or argument.startswith("-")):
            shown.append(f"{name}=***" if equals else name)
        else:
            shown.append(argument)
        hide_next = argument.startswith("-") and not equals and bool(SECRET_NAME.search(name))
    return shown


def read_leftovers() -> LeftoverFacts:
    spared = set(ancestors(os.getpid()))
    own = [info for info in _own_processes() if info.pid not in spared and info.parent_pid not in (0, 2)]
    stuck = [info for info in own if info.state == "D"]
    if stuck:
        time.sleep(_RESAMPLE_S)
        stuck = [again for info in stuck if (again := describe(info.pid)) and again.state == "D"]
    alive = [info for info in own if info.state not in ("Z", "X")]
    return LeftoverFacts(
        of_runs=tuple(unsupervised(alive)),
        data_workers=tuple(info for info in alive if not info.run_id and _is_orphaned_worker(info)),
        stuck=tuple(stuck),
        zombies=tuple(info for info in own if info.state == "Z"),
    )


def _own_processes() -> list[ProcessInfo]:
    uid = os.getuid()
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.uids().real == uid
        except psutil.Error:
            continue
        if ours and (info := describe(process.pid)):
            found.append(info)
    return found


def unsupervised(processes: Iterable[ProcessInfo]) -> list[ProcessInfo]:
    """Processes of runs whose supervisor is gone.

    Everything below a supervisor inherits the run id; the supervisor itself has none, and is the
    parent of the topmost. A run is supervised while such a parent, a trainctl, is alive.
    """
    by_run: dict[str, list[ProcessInfo]] = {}
    for info in processes:
        if info.run_id:
            by_run.setdefault(info.run_id, []).append(info)
    return [info for group in by_run.values() if not _has_supervisor(group) for info in group]


def _has_supervisor(group: list[ProcessInfo]) -> bool:
    members = {info.pid for info in group}
    for parent_pid in {info.parent_pid for info in group} - members:
        parent = describe(parent_pid)
        if parent is not None and "trainctl" in parent.command:
            return True
    return False


def _is_orphaned_worker(info: ProcessInfo) -> bool:
    """A DataLoader or multiprocessing worker that init, or a container's init, had to adopt."""
    stat = read_stat(info.pid)
    worker = (stat is not None and stat.command == "pt_data_worker") or (
        "multiprocessing.spawn" in info.command or "--multiprocessing-fork" in info.command
    )
    if not worker:
        return False
    parent = read_stat(info.parent_pid)
    return info.parent_pid == 1 or (parent is not None and parent.command in _INITS)
