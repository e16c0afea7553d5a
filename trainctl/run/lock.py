"""One launcher per run: a lock file beside the run directory, held while `trainctl launch` lives."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainctl.errors import TrainctlError
from trainctl.exitcodes import ExitCode
from trainctl.job.rundir import RunDir
from trainctl.job.units import human_seconds


@contextmanager
def hold(run: RunDir) -> Iterator[None]:
    """Hold the run for this process. Raises TrainctlError naming who holds it, or why it cannot be held.

    The kernel releases the lock when the holder dies, however it dies.
    """
    try:
        run.lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(run, error) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _held(run, os.pread(descriptor, 1000, 0)) from None
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        _note(descriptor, json.dumps(holder).encode())
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a forked child that inherited it
    finally:
        os.close(descriptor)


def unwritable(run: RunDir, error: OSError) -> TrainctlError:
    """What to say when the place of a run cannot be written."""
    return TrainctlError(
        "run-dir-unwritable",
        f"{run.path} cannot be written: {error.strerror}",
        hint="make it writable and free space there, or set job.runs_dir to another directory",
        exit_code=ExitCode.PREFLIGHT,
    )


def unreadable(run: RunDir, error: OSError) -> TrainctlError:
    """What to say when checkpoints are there and cannot be read: nothing is judged, nothing renamed."""
    return TrainctlError(
        "checkpoints-unreadable",
        f"{error.filename or run.checkpoints} cannot be read: {error.strerror}",
        hint="mend the file system or the permissions, then launch again; nothing was renamed",
        exit_code=ExitCode.FAILED,
    )


def _note(descriptor: int, raw: bytes) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, raw, 0)
    except OSError:
        pass  # a full disk: the lock itself holds without the note


def _held(run: RunDir, raw: bytes) -> TrainctlError:
    try:
        holder = json.loads(raw)
        since = human_seconds(max(0.0, time.time() - holder["since"]))
        who = f"pid {holder['pid']} on {holder['host']}, for {since}"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return TrainctlError(
        "run-held",
        f"{run.path} is already being run by {who}",
        hint=f"trainctl status {run.path.name} shows it; a copy needs another job.name",
    )


def is_held(run: RunDir) -> bool:
    """Whether a launcher on this host holds the run now. Never blocks, never takes it away."""
    try:
        descriptor = os.open(run.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
