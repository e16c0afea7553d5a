"""From attempts to the figures of one job. Expected values are worked out by hand in the comments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trainctl.ledger.goodput import Bucket
from trainctl.ledger.report import report
from trainctl.ledger.store import Attempt

Make = Callable[..., Attempt]

BOOKED = {"startup": 100.0, "steps_kept": 700.0, "checkpoint": 60.0, "detection": 30.0, "teardown": 10.0}


@pytest.fixture
def attempts(attempt: Make) -> list[Attempt]:
    """Two failures and a finish, 900 s each; they end at 1900 s, 2900 s and 3900 s."""
    measured = {"step_s": 2.0, "save_s": 6.0, "saves": 10, "buckets": BOOKED}
    return [
        attempt(1, first=1, last=350, durable=350, **measured),
        attempt(2, first=351, last=700, durable=700, **{**measured, "save_s": 12.0, "saves": 5}),
        attempt(3, first=701, last=1000, durable=1000, exit_code=0, cause="", step_s=4.0, buckets=BOOKED),
    ]


def test_what_the_interval_is_computed_from(attempts: list[Attempt]) -> None:
    save = report(attempts, prior_s=900.0).save
    assert save is not None
    assert save.cost_s == (10 * 6 + 5 * 12) / 15
    assert save.step_s == 2
    assert save.restart_s == 3 * 100 / 3 + 3 * (30 + 10) / 2  # start-up per start, the rest per failure
    assert save.mtbf_s == (900 + 3 * 800) / 3
    assert not save.recorded
    assert save.best.steps == round((2 * 8 * 1100) ** 0.5 / 2)
    assert save.now.steps == 50  # what the newest attempt used
    assert save.worth == pytest.approx(save.best.ettr - save.now.ettr)


def test_a_mild_assumption_does_not_soften_the_records(attempts: list[Attempt]) -> None:
    save = report(attempts).save  # 6,000 h on one node
    assert save is not None
    assert save.mtbf_s == 3 * 800 / 2
    assert save.recorded


def test_the_configuration_knows_todays_setting(attempts: list[Attempt]) -> None:
    result = report(attempts, save_steps=7, formula="exact")
    assert result.save is not None
    assert result.save.now.steps == 7
    assert result.save.best.chosen.formula == "exact"


def test_a_window_counts_the_part_of_an_attempt_that_lies_in_it(attempts: list[Attempt]) -> None:
    whole = report(attempts)
    assert whole.wall_s == 2700
    assert whole.goodput == pytest.approx(700 / 900)
    # 450 s of attempt 2 and all of attempt 3
    part = report(attempts, since=2450)
    assert part.wall_s == pytest.approx(450 + 900)
    assert part.buckets[Bucket.TEARDOWN] == pytest.approx(15)
    assert part.estimate.failures == 1
    assert part.estimate.exposure_s == 450 + 800
    assert (part.begin, part.end) == (2450, 3900)
    later = report(attempts, since=5000)
    assert (later.wall_s, later.goodput, later.save) == (0, None, None)


def test_causes_most_frequent_first(attempt: Make) -> None:
    result = report(
        [
            attempt(1, first=1, last=120, durable=100, cause="exit"),
            attempt(2, first=101, last=220, durable=200, cause="deadlock"),
            attempt(3, first=201, last=330, durable=300, cause="deadlock"),
        ]
    )
    assert [(row.cause, row.incidents, row.lost_steps, row.last) for row in result.causes] == [
        ("deadlock", 2, 50, 3900),
        ("exit", 1, 20, 1900),
    ]


def test_an_attempt_that_runs_is_enough_for_a_report(attempt: Make) -> None:
    running = Attempt(start=attempt(1).start, end=None)
    result = report([running])
    assert (result.begin, result.end) == (1000, 1000)
    assert (result.goodput, result.save) == (None, None)
    assert result.history.open == (running,)
