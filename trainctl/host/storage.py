"""Directories that a run writes to, tried by writing: free space says nothing about quota or rights."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from trainctl.host.facts import Place, StorageFacts

_TRIAL_BYTES = 1 << 20
_UNESCAPE = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def read_storage(directories: Mapping[str, Path], proc: Path = Path("/proc")) -> StorageFacts:
    """`directories`: role -> absolute path, which need not exist yet."""
    mounts = _mounts(proc)
    places = []
    for role, path in directories.items():
        try:
            places.append(_try(role, path, mounts))
        except OSError as error:  # a parent that may not be searched
            reason = f"{error.filename or path}: {error.strerror}"
            places.append(Place(role=role, path=str(path), exists=False, probed=str(path), error=reason))
    return StorageFacts(places=tuple(places))


def _try(role: str, path: Path, mounts: Mapping[str, str]) -> Place:
    probed = path
    while not probed.exists() and probed != probed.parent:
        probed = probed.parent
    space = os.statvfs(probed)
    started = time.monotonic()
    error = f"{probed} is not a directory" if not probed.is_dir() else _trial_write(probed)
    return Place(
        role=role,
        path=str(path),
        exists=path.is_dir(),
        probed=str(probed),
        error=error,
        write_s=round(time.monotonic() - started, 4),
        free_bytes=space.f_bavail * space.f_frsize,
        free_inodes=space.f_favail if space.f_files else None,
        filesystem=_filesystem(probed.resolve(), mounts),
        read_only=bool(space.f_flag & os.ST_RDONLY),
    )


def _trial_write(directory: Path) -> str:
    """Write, fsync, remove. Returns the reason in words when that fails, else ""."""
    trial = directory / f".trainctl-trial-{uuid.uuid4().hex}"
    try:
        with open(trial, "xb") as file:
            file.write(bytes(_TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()
    return ""


def _mounts(proc: Path) -> dict[str, str]:
    """Mount point -> file system type, from mountinfo (man 5 proc); empty when not readable."""
    try:
        lines = (proc / "self" / "mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    mounts = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4]
        for escaped, plain in _UNESCAPE.items():
            point = point.replace(escaped, plain)
        mounts[point] = after.split()[0]
    return mounts


def _filesystem(path: Path, mounts: Mapping[str, str]) -> str:
    for candidate in (path, *path.parents):
        if str(candidate) in mounts:
            return mounts[str(candidate)]
    return ""
