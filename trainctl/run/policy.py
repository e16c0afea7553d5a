"""What to do after an attempt: a pure function of its cause, the history and the progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trainctl.exitcodes import ExitCode
from trainctl.job import settings
from trainctl.run.causes import Restart
from trainctl.run.classify import Verdict


class Action(Enum):
    DONE = "done"
    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """One earlier attempt of this launch. durable_step: newest verified checkpoint after it."""

    fingerprint: str
    durable_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """exit_code is how `trainctl launch` ends unless the action is a restart. reason: one line."""

    action: Action
    exit_code: ExitCode
    reason: str
    delay_s: float = 0.0


def decide(
    verdict: Verdict,
    past: Sequence[Past],
    durable_step: int,
    limits: settings.Restart,
) -> Decision:
    """Restart, stop or done.

    past: earlier attempts of this launch, oldest first, without the one being judged.
    durable_step: newest verified checkpoint now (0 when there is none).
    """
    cause = verdict.cause
    if cause is None:
        return Decision(
            action=Action.DONE, exit_code=ExitCode.DONE, reason="the planned last step was reached"
        )
    if cause.restart is Restart.PLANNED:
        code = ExitCode.INTERRUPTED if cause.name == "stop.interrupt" else ExitCode.REQUEUE
        return Decision(action=Action.STOP, exit_code=code, reason=cause.says)
    if cause.restart is Restart.POINTLESS:
        return Decision(
            action=Action.STOP, exit_code=ExitCode.POINTLESS, reason=f"{cause.says}: a restart cannot help"
        )

    repeats = 1 + _same_without_progress(verdict.fingerprint, past, durable_step)
    if repeats >= limits.same_failure_limit and limits.max_restarts > 0:
        return Decision(
            action=Action.STOP,
            exit_code=ExitCode.POINTLESS,
            reason=f"the same failure {repeats} times without a newer checkpoint",
        )
    used = len(past)
    if used >= limits.max_restarts:
        if limits.max_restarts == 0:
            return Decision(action=Action.STOP, exit_code=ExitCode.FAILED, reason="restarts are off")
        return Decision(
            action=Action.STOP,
            exit_code=ExitCode.BUDGET,
            reason=f"{used} of {limits.max_restarts} restarts used",
        )
    idle = _without_progress(past, durable_step)
    delay_s = min(limits.max_backoff_s, limits.backoff_s * 2 ** (idle - 1)) if idle else 0.0
    return Decision(
        action=Action.RESTART,
        exit_code=ExitCode.FAILED,
        reason=f"restart {used + 1} of {limits.max_restarts}",
        delay_s=delay_s,
    )


def _same_without_progress(fingerprint: str, past: Sequence[Past], durable_step: int) -> int:
    """Attempts directly before this one with the same failure and no newer checkpoint since."""
    count = 0
    for attempt in reversed(past):
        if attempt.fingerprint != fingerprint or attempt.durable_step < durable_step:
            break
        count += 1
    return count


def _without_progress(past: Sequence[Past], durable_step: int) -> int:
    """Attempts directly before this one that left no newer checkpoint either."""
    count = 0
    for attempt in reversed(past):
        if attempt.durable_step < durable_step:
            break
        count += 1
    return count
