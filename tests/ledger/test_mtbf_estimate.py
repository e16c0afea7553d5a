"""Estimates against values computed independently from chi-square quantiles, to six digits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.ledger import mtbf

# T, n -> MTBF, 90 % interval, 95 % interval
VECTORS = [
    (1000, 0, math.inf, (333.808201, math.inf), (271.085031, math.inf)),
    (168, 0, math.inf, (56.079778, math.inf), (45.542285, math.inf)),
    (168, 1, 168, (35.414165, 3275.281925), (30.152684, 6635.645554)),
    (50, 5, 10, (4.756001, 25.378784), (4.285103, 30.797918)),
    (100, 2, 50, (15.883621, 281.403576), (13.841429, 412.866099)),
    (720, 3, 240, (92.859414, 880.527738), (82.123597, 1163.782840)),
    (720, 10, 72, (42.447276, 132.708970), (39.150955, 150.144242)),
    (2160, 27, 80, (58.011242, 113.337582), (54.984802, 121.394894)),
    (1296, 419, 3.093079, (2.852939, 3.358307), (2.810634, 3.412000)),
    (1296, 466, 2.781116, (2.576003, 3.006472), (2.539711, 3.051960)),
    (8352, 584, 14.301370, (13.355848, 15.329640), (13.187123, 15.536018)),
    (8352, 298, 28.026846, (25.463473, 30.912130), (25.018877, 31.502400)),
]


@pytest.mark.parametrize(("exposure", "failures", "best", "ninety", "ninety_five"), VECTORS)
def test_exact_intervals(
    exposure: float, failures: int, best: float, ninety: tuple[float, float], ninety_five: tuple[float, float]
) -> None:
    assert mtbf.interval(exposure, failures, 0.90) == pytest.approx(ninety, abs=6e-7)
    assert mtbf.interval(exposure, failures, 0.95) == pytest.approx(ninety_five, abs=6e-7)
    assert mtbf.lower_bound(exposure, failures, 0.95) == pytest.approx(ninety[0], abs=6e-7)
    times = [exposure * (i + 1) / (failures + 1) for i in range(failures)]
    assert mtbf.estimate(exposure, times).mtbf_s == pytest.approx(best, abs=6e-7)


def test_without_failures_there_is_a_bound_and_no_infinity_in_it() -> None:
    found = mtbf.estimate(168, ())
    assert found.low_s == pytest.approx(168 / 2.995732, abs=1e-4)  # the rule of three, exactly
    assert math.isinf(found.mtbf_s)
    assert math.isinf(found.high_s)
    assert mtbf.estimate(0, ()).low_s == 0


# Gamma(1, b) prior: b, T, n -> one over the mean rate
@pytest.mark.parametrize(
    ("assumed", "exposure", "failures", "expected"),
    [(8, 0, 0, 8.0), (8, 24, 0, 32.0), (8, 24, 6, 4.571429), (28.8, 100, 1, 64.4)],
)
def test_plug_in(assumed: float, exposure: float, failures: int, expected: float) -> None:
    assert mtbf.plug_in_s(exposure, failures, assumed) == pytest.approx(expected, abs=6e-7)


def test_the_assumption_tempers_good_luck_and_never_contradicts_bad() -> None:
    assert mtbf.for_interval_s(0, 0, 8) == 8
    assert mtbf.for_interval_s(24, 0, 8) == 32
    assert mtbf.for_interval_s(100, 1, 28.8) == pytest.approx(64.4)
    assert mtbf.for_interval_s(6, 7, 3000) == pytest.approx(6 / 7)
    assert mtbf.for_interval_s(0, 1, 8) == 4  # a failure in no time: nothing to divide


def test_prior_is_divided_by_nodes() -> None:
    assert mtbf.prior_s(1) == 6000 * 3600
    assert mtbf.prior_s(48) == 125 * 3600


@pytest.mark.parametrize(
    ("times", "u", "words"),
    [
        ((4, 10, 22, 40, 70, 111, 155, 220, 300, 410), -2.537051, "improving"),
        ((90, 180, 260, 320, 370, 405, 440, 465, 480, 495), 2.201845, "worsening"),
        ((45, 97, 151, 202, 255, 299, 348, 402, 451, 497), 0.541150, "no trend"),
        (tuple(range(50, 451, 50)), 0, "no trend"),
    ],
)
def test_laplace_trend(times: tuple[float, ...], u: float, words: str) -> None:
    found = mtbf.estimate(500, times)
    assert found.trend_u == pytest.approx(u, abs=6e-7)
    assert found.trend == words


def test_three_failures_are_no_trend() -> None:
    found = mtbf.estimate(500, (1, 2, 3))
    assert found.trend_u is None
    assert found.trend == "too few to see a trend"


@given(
    exposure=st.floats(min_value=1, max_value=1e9),
    failures=st.integers(min_value=1, max_value=5000),
    confidence=st.floats(min_value=0.5, max_value=0.999),
)
def test_intervals_hold_the_estimate_and_shrink_with_records(
    exposure: float, failures: int, confidence: float
) -> None:
    low, high = mtbf.interval(exposure, failures, confidence)
    assert low < exposure / failures < high
    more_low, more_high = mtbf.interval(2 * exposure, 2 * failures, confidence)
    assert more_low > low
    assert more_high < high
