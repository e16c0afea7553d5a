"""Shared memory: how much is free, and what dead processes of this user left in it."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from trainctl.host.facts import ShmFacts, ShmSegment
from trainctl.host.processes import all_pids

# NCCL, torch's shared tensors, POSIX semaphores, python's multiprocessing
_PREFIXES = ("nccl-", "torch_", "sem.", "psm_")


def read_shm(path: Path = Path("/dev/shm"), proc: Path = Path("/proc")) -> ShmFacts:
    """Raises OSError when the directory or the process list is not readable."""
    size = os.statvfs(path)
    candidates = _own_segments(path)
    in_use = _in_use(path, proc) if candidates else set()
    return ShmFacts(
        path=str(path),
        total_bytes=size.f_blocks * size.f_frsize,
        free_bytes=size.f_bavail * size.f_frsize,
        abandoned=tuple(segment for segment in candidates if segment.name not in in_use),
    )


def _own_segments(path: Path) -> list[ShmSegment]:
    now = time.time()
    found = []
    for entry in sorted(path.iterdir()):
        try:
            status = entry.lstat()
        except FileNotFoundError:
            continue  # its owner removed it just now
        ours = status.st_uid == os.getuid() and stat.S_ISREG(status.st_mode)
        if ours and entry.name.startswith(_PREFIXES):
            age_s = max(0.0, now - status.st_mtime)
            found.append(ShmSegment(name=entry.name, size_bytes=status.st_size, age_s=age_s))
    return found


def _in_use(path: Path, proc: Path) -> set[str]:
    """Names under `path` that a readable process maps or holds open."""
    prefix = f"{path}/"
    names = set()
    for pid in all_pids(proc):
        here = proc / str(pid)
        try:
            for line in (here / "maps").read_text(errors="replace").splitlines():
                _, slash, target = line.partition(prefix)
                if slash:
                    names.add(target.removesuffix(" (deleted)"))
            for descriptor in os.listdir(here / "fd"):
                target = str((here / "fd" / descriptor).readlink())
                if target.startswith(prefix):
                    names.add(target.removeprefix(prefix).removesuffix(" (deleted)"))
        except OSError:
            continue  # gone, or another user's: that cannot hold a segment of mode 0600
    return names
