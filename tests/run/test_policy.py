"""What happens after an attempt: a pure function of cause, history and progress."""

import pytest

from trainctl.exitcodes import ExitCode
from trainctl.job.settings import Restart
from trainctl.run.causes import CAUSES
from trainctl.run.classify import Verdict
from trainctl.run.policy import Action, Past, decide

LIMITS = Restart(max_restarts=4, same_failure_limit=3, backoff_s=1, max_backoff_s=5)


def verdict(name: str | None, fingerprint: str = "f") -> Verdict:
    return Verdict(cause=None if name is None else CAUSES[name], fingerprint=fingerprint)


def past(*entries: tuple[str, int]) -> list[Past]:
    return [Past(fingerprint=fingerprint, durable_step=step) for fingerprint, step in entries]


def test_done() -> None:
    assert decide(verdict(None), [], 100, LIMITS).exit_code == ExitCode.DONE


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("stop.interrupt", ExitCode.INTERRUPTED),
        ("stop.terminate", ExitCode.REQUEUE),
        ("stop.trainer", ExitCode.REQUEUE),
    ],
)
def test_planned_stops(name: str, code: ExitCode) -> None:
    decision = decide(verdict(name), [], 10, LIMITS)
    assert (decision.action, decision.exit_code) == (Action.STOP, code)


@pytest.mark.parametrize(
    "name", [cause.name for cause in CAUSES.values() if cause.restart.value == "pointless"]
)
def test_a_restart_that_cannot_help_is_not_tried(name: str) -> None:
    decision = decide(verdict(name), [], 10, LIMITS)
    assert (decision.action, decision.exit_code) == (Action.STOP, ExitCode.POINTLESS)


def test_first_failure_restarts_at_once() -> None:
    decision = decide(verdict("process.killed"), [], 0, LIMITS)
    assert (decision.action, decision.delay_s) == (Action.RESTART, 0.0)


def test_the_same_failure_without_a_newer_checkpoint_stops() -> None:
    assert decide(verdict("exception"), past(("f", 5)), 5, LIMITS).action is Action.RESTART
    decision = decide(verdict("exception"), past(("f", 5), ("f", 5)), 5, LIMITS)
    assert (decision.action, decision.exit_code) == (Action.STOP, ExitCode.POINTLESS)


def test_progress_or_another_failure_starts_the_count_again() -> None:
    assert decide(verdict("exception"), past(("f", 5), ("f", 9)), 12, LIMITS).action is Action.RESTART
    assert decide(verdict("exception"), past(("f", 5), ("g", 5)), 5, LIMITS).action is Action.RESTART


def test_budget() -> None:
    entries = past(("a", 1), ("b", 2), ("c", 3), ("d", 4))
    decision = decide(verdict("exception"), entries, 5, LIMITS)
    assert (decision.action, decision.exit_code) == (Action.STOP, ExitCode.BUDGET)
    assert "4 of 4" in decision.reason


def test_restarts_off_is_a_plain_failure() -> None:
    decision = decide(verdict("exception"), [], 0, Restart(max_restarts=0))
    assert (decision.action, decision.exit_code) == (Action.STOP, ExitCode.FAILED)


def test_backoff_doubles_without_progress_and_is_bounded() -> None:
    limits = Restart(max_restarts=9, same_failure_limit=99, backoff_s=1, max_backoff_s=5)
    delays = [decide(verdict("exception"), past(*[("f", 0)] * n), 0, limits).delay_s for n in range(5)]
    assert delays == [0, 1, 2, 4, 5]
    assert decide(verdict("exception"), past(("f", 0), ("f", 0)), 7, limits).delay_s == 0
