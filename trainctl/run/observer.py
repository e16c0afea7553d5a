"""Whom a launch tells what it does. The command line shows it; tests record it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from trainctl.job.plan import Plan
from trainctl.job.protocol import Heartbeat
from trainctl.job.rundir import AttemptDir
from trainctl.run.classify import Verdict
from trainctl.run.policy import Decision
from trainctl.run.states import State
from trainctl.run.supervise import Outcome

if TYPE_CHECKING:
    from trainctl.run.preflight import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where an attempt starts. step 0 and no path: from scratch."""

    step: int = 0
    path: str = ""
    rejected: tuple[str, ...] = field(default=())  # newer checkpoints that did not verify, with the reason


class LaunchObserver(Protocol):
    """Every method is called from the main thread, in the order in which things happen."""

    def note(self, text: str) -> None: ...
    def checking(self) -> None: ...
    def preflight(self, report: Report) -> None: ...
    def planned(self, plan: Plan) -> None: ...
    def attempt_started(self, attempt: AttemptDir, resume: Resume, save_steps: int) -> None: ...
    def tick(self, attempt: AttemptDir, state: State, beats: Mapping[int, Heartbeat]) -> None: ...
    def changed(self, attempt: AttemptDir, state: State, why: str) -> None: ...
    def attempt_ended(
        self,
        attempt: AttemptDir,
        outcome: Outcome,
        verdict: Verdict,
        decision: Decision,
        durable_step: int | None,
    ) -> None: ...
    def waiting(self, seconds: float, why: str) -> None: ...
