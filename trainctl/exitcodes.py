"""Exit codes are API: the one table of what trainctl and a trainer under it may return."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a `trainctl` command ends."""

    DONE = 0  # for launch: the planned last step was reached
    FAILED = 1  # training failed and no rule below applies
    USAGE = 2  # bad usage or configuration
    PREFLIGHT = 3  # preflight failed, nothing was started
    BUDGET = 4  # restart budget spent
    POINTLESS = 5  # a restart cannot help, or made no progress
    REQUEUE = 75  # stopped on purpose with a checkpoint; worth requeueing
    INTERRUPTED = 130  # Ctrl-C


class PayloadExit(IntEnum):
    """How a trainer ends. torchrun flattens all of these to 1, so they are read from `exits/`."""

    DONE = 0  # reached the planned last step
    FAILED = 1
    DISAMBIGUATE = 16  # stopped so that the iteration can be repeated on another device
    REJECTED = 17  # a result was rejected; parameters are those of the step before
    STOPPED = 75  # stopped on purpose with a checkpoint (signal, time limit, interval)
