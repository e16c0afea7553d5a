"""What counts as a failure, and how long training was exposed to one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from trainctl.ledger.incidents import history
from trainctl.ledger.store import Attempt

Make = Callable[..., Attempt]


def test_failure_then_progress_is_one_recovered_incident(attempt: Make) -> None:
    past = history(
        [
            attempt(1, first=1, last=120, durable=100, failed_at=1800, cause="deadlock", rank=1),
            attempt(2, first=101, last=400, durable=400, exit_code=0, cause="", planned=True),
        ]
    )
    (incident,) = past.incidents
    assert (incident.cause, incident.rank, incident.attempts) == ("deadlock", 1, (1,))
    assert incident.time == 1800
    assert incident.lost_steps == 20
    assert incident.recovered
    assert len(past.finished) == 1
    assert past.planned == ()
    assert past.exposure_s == (1800 - 1100) + (2900 - 2100)
    assert past.failure_times_s == (700,)


def test_reaching_the_last_step_ends_an_incident_without_a_save(attempt: Make) -> None:
    finished = attempt(2, first=101, last=130, durable=100, exit_code=0, cause="")
    past = history([attempt(1, first=1, last=120, durable=100), finished])
    assert [i.recovered for i in past.incidents] == [True]
    assert past.exposure_s == 1600


def test_a_crash_loop_is_one_incident_with_the_first_cause(attempt: Make) -> None:
    past = history(
        [
            attempt(1, first=1, last=120, durable=100, cause="collective"),
            attempt(2, first=101, last=130, durable=100, cause="deadlock"),
            attempt(3, resumed=100, durable=100, cause="process.crashed"),
            attempt(4, first=101, last=180, durable=150, cause="exception"),
        ]
    )
    assert [(i.cause, i.attempts, i.recovered) for i in past.incidents] == [
        ("collective", (1, 2, 3), True),
        ("exception", (4,), False),
    ]
    assert past.startup_failures == ()
    assert past.exposure_s == 800 + 800  # attempts 1 and 4: during an incident no failure can be counted
    assert past.failure_times_s == (800, 1600)


def test_no_steps_is_a_startup_failure_and_no_exposure(attempt: Make) -> None:
    past = history([attempt(1, cause="process.killed"), attempt(2, cause="user.code")])
    assert len(past.startup_failures) == 2
    assert past.incidents == ()
    assert past.exposure_s == 0


@pytest.mark.parametrize(
    ("cause", "startup"),
    [("user.config", True), ("startup.failed", True), ("user.code", False), ("exit", False)],
)
def test_causes_of_the_start_count_apart_even_with_steps(attempt: Make, cause: str, startup: bool) -> None:
    past = history([attempt(1, first=1, last=5, durable=0, cause=cause)])
    assert len(past.startup_failures) == startup
    assert past.failures == (not startup)
    assert past.exposure_s == 800


def test_a_planned_stop_censors(attempt: Make) -> None:
    past = history(
        [attempt(1, first=1, last=80, durable=80, planned=True, exit_code=75, cause="stop.interrupt")]
    )
    assert past.failures == 0
    assert len(past.planned) == 1
    assert past.exposure_s == 800


def test_a_trainer_that_does_not_report_saves_is_believed_by_its_steps(attempt: Make) -> None:
    past = history(
        [
            attempt(1, first=1, last=100, durable=None),
            attempt(2, first=51, last=90, durable=None),
            attempt(3, first=51, last=300, durable=None),
        ]
    )
    assert [i.attempts for i in past.incidents] == [(1, 2), (3,)]


def test_open_attempts_are_listed_and_not_counted(attempt: Make) -> None:
    running = Attempt(start=attempt(1).start, end=None)
    past = history([running])
    assert past.open == (running,)
    assert (past.failures, past.exposure_s) == (0, 0)


def test_order_of_attempts_does_not_matter_and_runs_do_not_mix(attempt: Make) -> None:
    attempts = [
        attempt(1, first=1, last=120, durable=100),
        attempt(2, resumed=100, durable=100),
        attempt(1, run_id="run-b", durable=0),
        attempt(3, first=101, last=200, durable=200, exit_code=0, cause=""),
    ]
    expected = history(attempts)
    assert expected.failures == 1
    assert len(expected.startup_failures) == 1
    assert all(history(order) == expected for order in permutations(attempts))


def test_window_cuts_exposure_and_leaves_old_incidents_out(attempt: Make) -> None:
    past = history(
        [
            attempt(1, first=1, last=120, durable=100),
            attempt(2, first=101, last=220, durable=200),
            attempt(3, durable=200),
        ]
    )
    recent = past.since(2500)
    assert [i.attempts for i in recent.incidents] == [(2, 3)]
    assert recent.exposure_s == 2900 - 2500
    assert recent.failure_times_s == (400,)
    assert past.since(0) == past


def test_failure_without_a_stamp_of_the_first_step_still_counts_once(attempt: Make) -> None:
    past = history([attempt(1, first=1, last=10, first_step_at=None)])
    assert past.failures == len(past.failure_times_s) == 1
    assert past.exposure_s == 900  # from the start of torchrun: the first stamp there is
