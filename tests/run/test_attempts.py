"""Between two attempts: what stops a restart that the policy would allow."""

from __future__ import annotations

import pytest

from trainctl.exitcodes import ExitCode
from trainctl.host.processes import Process
from trainctl.job.settings import Restart
from trainctl.run.attempts import Attempts
from trainctl.run.causes import CAUSES
from trainctl.run.classify import Verdict
from trainctl.run.policy import Action, Decision
from trainctl.run.signals import Signals
from trainctl.run.supervise import Outcome


class Stand:
    """As much of `Attempts` as a decision needs."""

    def __init__(self) -> None:
        self.past: list[object] = []
        self.signals = Signals()
        self.plan = type("Plan", (), {"settings": type("Settings", (), {"restart": Restart()})})

    def decide(self, name: str, survivors: tuple[Process, ...] = ()) -> Decision:
        outcome = Outcome(
            spawned_at=0, noticed_at=1, progress_at=0, gone_at=2, agent_code=1, agent_error="", stop=None,
            stalled=None, trained=True, survivors=survivors,
        )  # fmt: skip
        verdict = Verdict(cause=CAUSES[name], fingerprint=name)
        return Attempts._decide(self, verdict, outcome, 10)  # type: ignore[arg-type]


def test_a_failure_is_restarted() -> None:
    assert Stand().decide("process.killed").action is Action.RESTART


def test_not_beside_processes_that_cannot_be_ended() -> None:
    """One in state D may wake up and write into what the next attempt writes."""
    decision = Stand().decide("process.killed", survivors=(Process(1, 1),))
    assert (decision.action, decision.exit_code) == (Action.STOP, ExitCode.POINTLESS)
    assert "1 process of the attempt cannot be ended" in decision.reason


@pytest.mark.parametrize(
    ("first", "code"), [("interrupt", ExitCode.INTERRUPTED), ("terminate", ExitCode.REQUEUE)]
)
def test_a_request_to_stop_wins(first: str, code: ExitCode) -> None:
    stand = Stand()
    stand.signals.first, stand.signals.count = first, 1
    decision = stand.decide("process.killed")
    assert (decision.action, decision.exit_code) == (Action.STOP, code)
