"""Every second in one bucket, whatever the stamps say."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.ledger.goodput import Bucket, Timeline, split, totals
from trainctl.ledger.store import Attempt

T0 = 1.7e9  # unix seconds are large: small differences must survive


def nonzero(buckets: dict[Bucket, float]) -> dict[str, float]:
    return {bucket.value: round(seconds, 6) for bucket, seconds in buckets.items() if seconds > 1e-6}


def steps(first: int, last: int, start: float, seconds: float) -> list[tuple[int, float, float]]:
    return [(n, start + (n - first + 1) * seconds, seconds) for n in range(first, last + 1)]


def test_a_failed_attempt() -> None:
    timeline = Timeline(
        begin=T0,
        waits_s=4,
        first_step_start=T0 + 10,
        steps=[*steps(1, 10, T0 + 10, 2), *steps(11, 15, T0 + 36, 2)],
        saves=[(T0 + 35, 5)],
        evaluations=[(T0 + 36, 1)],
        durable_step=10,
        failed=T0 + 48,
        noticed=T0 + 60,
        end=T0 + 65,
    )
    assert nonzero(split(timeline)) == {
        "startup": 6,
        "steps_kept": 20,
        "checkpoint": 5,
        "evaluation": 1,
        "steps_redone": 10,
        "detection": 12,
        "teardown": 5,
        "idle": 4 + 2,  # the wait, and 46 to 48 s after the last step
    }


def test_a_finished_attempt_keeps_its_tail() -> None:
    timeline = Timeline(
        begin=T0,
        end=T0 + 32,
        first_step_start=T0 + 10,
        steps=steps(1, 10, T0 + 10, 2),
        noticed=T0 + 31,
        durable_step=5,
        finished=True,
    )
    assert nonzero(split(timeline)) == {"startup": 10, "steps_kept": 20, "idle": 1, "teardown": 1}


def test_without_word_on_saves_all_steps_are_kept() -> None:
    timeline = Timeline(begin=0, end=20, first_step_start=0, failed=20, steps=steps(1, 10, 0, 2))
    assert nonzero(split(timeline)) == {"steps_kept": 20}


def test_an_attempt_that_never_trained_is_startup_until_it_failed() -> None:
    assert nonzero(split(Timeline(begin=T0, failed=T0 + 8, noticed=T0 + 9, end=T0 + 10))) == {
        "startup": 8,
        "detection": 1,
        "teardown": 1,
    }
    assert nonzero(split(Timeline(begin=T0, noticed=T0 + 9, end=T0 + 10))) == {"startup": 9, "teardown": 1}
    assert nonzero(split(Timeline(begin=T0, end=T0 + 10))) == {"startup": 10}


def test_a_save_inside_a_step_is_a_save() -> None:
    timeline = Timeline(
        begin=0, end=12, first_step_start=0, steps=[(1, 12, 12)], saves=[(10, 8)], durable_step=1
    )
    assert nonzero(split(timeline)) == {"steps_kept": 4, "checkpoint": 8}


def test_time_that_two_records_claim_is_counted_once() -> None:
    claims = [(1, 10, 10), (2, 8, 5), (3, 14, 2), (4, 12, 4)]  # 0-10, 3-8, 12-14 and, not durable, 8-12
    timeline = Timeline(begin=0, end=20, first_step_start=0, steps=claims, durable_step=3)
    assert nonzero(split(timeline)) == {"steps_kept": 12, "steps_redone": 2, "idle": 6}


stamp = st.floats(min_value=T0 - 1e6, max_value=T0 + 1e6)
maybe = st.none() | stamp | st.just(math.nan) | st.just(math.inf)
took = st.floats(min_value=-10, max_value=1e5) | st.just(math.nan) | st.just(math.inf)


@given(
    st.builds(
        Timeline,
        begin=stamp,
        end=stamp,
        first_step_start=maybe,
        failed=maybe,
        noticed=maybe,
        waits_s=st.floats(min_value=-100, max_value=1e7),
        steps=st.lists(st.tuples(st.integers(-5, 100), stamp, took), max_size=30),
        saves=st.lists(st.tuples(stamp, took), max_size=8),
        evaluations=st.lists(st.tuples(stamp, took), max_size=8),
        durable_step=st.none() | st.integers(0, 100),
        finished=st.booleans(),
    )
)
def test_buckets_are_never_negative_and_add_up(timeline: Timeline) -> None:
    buckets = split(timeline)
    assert list(buckets) == list(Bucket)
    assert all(seconds >= 0 for seconds in buckets.values())
    assert math.fsum(buckets.values()) == pytest.approx(max(0, timeline.end - timeline.begin), abs=1e-6)


@given(
    edges=st.lists(st.integers(1, 50), min_size=5, max_size=5),
    lengths=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=20),
    durable=st.integers(0, 20),
)
def test_orderly_records_are_booked_exactly(edges: list[int], lengths: list[int], durable: int) -> None:
    startup, save, gap, detection, teardown = edges
    at = float(startup)
    done = []
    for number, seconds in enumerate(lengths, 1):
        at += seconds
        done.append((number, at, float(seconds)))
    at += save
    failed = at + gap
    buckets = split(
        Timeline(
            begin=0,
            first_step_start=startup,
            steps=done,
            saves=[(at, save)],
            durable_step=durable,
            failed=failed,
            noticed=failed + detection,
            end=failed + detection + teardown,
        )
    )
    assert buckets == pytest.approx(
        {
            Bucket.STARTUP: startup,
            Bucket.STEPS_KEPT: sum(lengths[:durable]),
            Bucket.STEPS_REDONE: sum(lengths[durable:]),
            Bucket.CHECKPOINT: save,
            Bucket.EVALUATION: 0,
            Bucket.DETECTION: detection,
            Bucket.TEARDOWN: teardown,
            Bucket.IDLE: gap,
        }
    )


Make = Callable[..., Attempt]


def test_steps_that_a_later_attempt_repeats_are_not_kept(attempt: Make) -> None:
    booked = {"steps_kept": 100.0, "steps_redone": 20.0, "startup": 5.0}
    first = attempt(1, first=1, last=120, durable=100, buckets=booked)
    good = attempt(2, first=101, last=150, durable=150, buckets={"steps_kept": 50.0})
    assert nonzero(totals([first, good])) == {"steps_kept": 150, "steps_redone": 20, "startup": 5}
    # the checkpoint at 100 did not verify: it came back from 60
    older = attempt(2, first=61, last=150, durable=150, buckets={"steps_kept": 90.0})
    assert nonzero(totals([older, first])) == {"steps_kept": 60 + 90, "steps_redone": 20 + 40, "startup": 5}


def test_an_attempt_that_made_no_steps_repeats_none(attempt: Make) -> None:
    first = attempt(1, first=1, last=100, durable=100, buckets={"steps_kept": 100.0})
    failed = attempt(2, resumed=0, durable=100, buckets={"startup": 7.0})
    assert nonzero(totals([first, failed])) == {"steps_kept": 100, "startup": 7}


def test_runs_do_not_mix_and_unknown_buckets_are_idle(attempt: Make) -> None:
    one = attempt(1, first=1, last=100, durable=100, buckets={"steps_kept": 100.0})
    other = attempt(2, first=1, last=10, durable=10, run_id="run-b", buckets={"siesta": 3.0})
    assert nonzero(totals([one, other])) == {"steps_kept": 100, "idle": 3}
