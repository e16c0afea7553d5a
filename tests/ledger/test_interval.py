"""Interval formulas against values computed independently, to six digits.

The vectors were computed apart from this code, with a Lambert W function and closed forms; costs agree
with a simulation of 2 million intervals (M 14,400 s, C 490 s, R 600 s: slowdown 1.3701 at 3,360 s).
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.ledger import interval

# C, M, R -> Young, Daly, exact, ETTR at exact, ETTR at Young; all seconds
VECTORS = [
    (490, 14400, 0, 3756.594202, 3437.029122, 3437.279867, 0.761300, 0.760578),
    (490, 28800, 0, 5312.626469, 4990.981382, 4991.106242, 0.826698, 0.826417),
    (490, 86400, 0, 9201.738966, 8877.971510, 8878.012946, 0.897245, 0.897186),
    (490, 259200, 0, 15937.879407, 15612.886601, 15612.900376, 0.939765, 0.939753),
    (490, 14400, 600, 3756.594202, 3437.029122, 3437.279867, 0.730231, 0.729538),
    (490, 86400, 600, 9201.738966, 8877.971510, 8878.012946, 0.891036, 0.890977),
    (60, 10800, 300, 1138.419958, 1098.771322, 1098.776292, 0.873653, 0.873597),
    (60, 11134.6, 300, 1155.920412, 1116.266457, 1116.271277, 0.875829, 0.875776),
    (30, 6492, 900, 624.115374, 604.275601, 604.277667, 0.789517, 0.789479),
    (10, 6492, 300, 360.333179, 353.697348, 353.697577, 0.902819, 0.902811),
    (300, 86400, 1200, 7200.000000, 7001.388889, 7001.404400, 0.906290, 0.906261),
    (1800, 86400, 3600, 17636.326148, 16456.738563, 16457.300804, 0.776485, 0.776129),
    (40, 604800, 3600, 6955.860838, 6929.219729, 6929.219769, 0.982676, 0.982676),
    (12, 28800, 120, 831.384388, 823.403633, 823.403707, 0.967370, 0.967369),
    (5, 1800, 60, 134.164079, 130.851450, 130.851656, 0.896904, 0.896884),
    (600, 3600, 600, 2078.460969, 1697.705978, 1699.230893, 0.446935, 0.442529),
    (3600, 3600, 0, 5091.168825, 2974.011537, 3029.060378, 0.158594, 0.138907),
    (7200, 3600, 0, 7200.000000, 3600.000000, 3411.111249, 0.052469, 0.037315),
    (1200, 600, 0, 1200.000000, 600.000000, 568.518542, 0.052469, 0.037315),
    (1, 1000000, 0, 1414.213562, 1413.546974, 1413.546974, 0.998586, 0.998586),
    (490, 1000, 0, 989.949494, 690.231452, 693.924952, 0.306075, 0.291786),
]


@pytest.mark.parametrize(
    ("cost", "mtbf", "restart", "young", "daly", "exact", "at_exact", "at_young"), VECTORS
)
def test_formulas_and_their_cost(
    cost: float,
    mtbf: float,
    restart: float,
    young: float,
    daly: float,
    exact: float,
    at_exact: float,
    at_young: float,
) -> None:
    assert interval.young(mtbf, cost) == pytest.approx(young, abs=6e-7)
    assert interval.daly(mtbf, cost) == pytest.approx(daly, abs=6e-7)
    assert interval.exact(mtbf, cost) == pytest.approx(exact, abs=6e-7)
    assert interval.ettr(exact, mtbf, cost, restart) == pytest.approx(at_exact, abs=6e-7)
    assert interval.ettr(young, mtbf, cost, restart) == pytest.approx(at_young, abs=6e-7)


# C = 490 s and a step of 120 s, the example that asked for this tool
@pytest.mark.parametrize(("hours", "young", "best"), [(4, 31, 29), (8, 44, 42), (24, 77, 74), (72, 133, 130)])
def test_whole_steps(hours: float, young: int, best: int) -> None:
    assert interval.advise("young", hours * 3600, 490, 120).steps == young
    assert interval.advise("daly", hours * 3600, 490, 120).steps == best
    assert interval.advise("exact", hours * 3600, 490, 120).steps == best


def test_exact_agrees_with_lambert_w() -> None:
    from scipy.special import lambertw

    for cost, mtbf in ((490, 14400), (7200, 3600), (1, 3000)):
        by_lambert = mtbf * (1 + float(lambertw(-math.exp(-1 - cost / mtbf)).real))
        assert interval.exact(mtbf, cost) == pytest.approx(by_lambert, rel=1e-9)


times = st.floats(min_value=1e-3, max_value=1e8)


@given(mtbf=times, cost=times)
def test_exact_is_a_root_below_young(mtbf: float, cost: float) -> None:
    tau = interval.exact(mtbf, cost)
    x = tau / mtbf
    assert 0 < tau <= min(mtbf, interval.young(mtbf, cost))
    if x < 0.999:
        assert x + math.log1p(-x) == pytest.approx(-cost / mtbf, rel=1e-4)


@given(mtbf=times, cost=times, factor=st.floats(min_value=1.01, max_value=100))
@pytest.mark.parametrize("formula", ["young", "daly", "exact"])
def test_longer_mtbf_or_dearer_save_never_shortens_the_interval(
    formula: interval.Formula, mtbf: float, cost: float, factor: float
) -> None:
    if formula == "daly" and cost * factor > mtbf / 2:
        return  # Daly's series bends back before it jumps at C = 2 M
    tau = interval.FORMULAS[formula]
    assert tau(mtbf * factor, cost) >= tau(mtbf, cost) * (1 - 1e-9)
    assert tau(mtbf, cost * factor) >= tau(mtbf, cost) * (1 - 1e-9)


@given(
    mtbf=st.floats(min_value=60, max_value=1e6),
    cost=st.floats(min_value=0.1, max_value=1e3),
    step=st.floats(min_value=0.1, max_value=1e3),
)
def test_no_whole_number_of_steps_beats_the_exact_choice(mtbf: float, cost: float, step: float) -> None:
    advice = interval.advise("exact", mtbf, cost, step)
    assert advice.steps >= 1
    for other in interval.around(advice, mtbf_s=mtbf, cost_s=cost, step_s=step):
        assert advice.ettr >= other.ettr * (1 - 1e-9)
    for steps in (advice.steps - 1, advice.steps + 1):
        if steps:
            assert advice.ettr >= interval.ettr(steps * step, mtbf, cost) * (1 - 1e-9)


def test_restart_time_moves_the_cost_not_the_choice() -> None:
    without, with_restart = (interval.advise("exact", 14400, 490, 120, restart) for restart in (0, 1800))
    assert without.steps == with_restart.steps == 29
    assert without.chosen.tau_s == with_restart.chosen.tau_s
    assert interval.ettr(without.chosen.tau_s, 14400, 490, 1800) == pytest.approx(0.671845, abs=6e-7)
    assert with_restart.ettr < without.ettr
    assert without.overhead == with_restart.overhead


def test_step_longer_than_the_interval_saves_every_step() -> None:
    for formula in interval.FORMULAS:
        assert interval.advise(formula, 3600, 1, 500).steps == 1


def test_hopeless_is_said_and_stays_finite() -> None:
    assert interval.advise("young", 86400, 490, 120).warnings == ()
    low = interval.advise("young", 3600, 600, 120, 600)
    assert len(low.warnings) == 1
    assert "44 %" in low.warnings[0]
    hopeless = interval.advise("young", 10, 1e6, 1)
    assert len(hopeless.warnings) == 2
    assert hopeless.ettr == 0
    assert hopeless.overhead == 1


@pytest.mark.parametrize("times", [(0, 1, 1), (1, -1, 1), (1, 1, math.inf), (math.nan, 1, 1), (1, 1, 1, -1)])
def test_times_must_be_positive(times: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="expected a"):
        interval.advise("young", *times)
