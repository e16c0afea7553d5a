"""How many steps between two saves: three formulas and what each choice is expected to cost.

Pure arithmetic. All times in seconds, all costs for failures that come at random with mean distance
`mtbf_s` (exponential) and may also hit the restart. `tau_s` is the training time between two saves,
the save itself not included; `cost_s` is the time training stands still for one save.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Formula = Literal["young", "daly", "exact"]

_LOW_ETTR = 0.5  # below it more time is lost than trained, whatever the interval


def young(mtbf_s: float, cost_s: float) -> float:
    """Best tau in seconds to first order: sqrt(2 C M) (Young, 1974)."""
    return math.sqrt(2 * cost_s * mtbf_s)


def daly(mtbf_s: float, cost_s: float) -> float:
    """Best tau in seconds to higher order (Daly, 2006, equation 37). M itself from C = 2 M on."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return young(mtbf_s, cost_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def exact(mtbf_s: float, cost_s: float) -> float:
    """Best tau in seconds without approximation: M (1 + W0(-exp(-1 - C/M))), W0 Lambert's function.

    Solved as x + C/M + ln(1 - x) = 0 with x = tau/M: near x = 0, where every healthy cluster is, the
    argument of W0 sits on its branch point and loses half of the digits. The left side is concave,
    so Newton's method from above the root falls onto it without ever stepping past.
    """
    load = cost_s / mtbf_s
    x = min(math.sqrt(2 * load), 1 - math.exp(-1 - load))  # both are above the root; the first is Young
    while 0 < x < 1:
        lower = x + (x + load + math.log1p(-x)) * (1 - x) / x
        if not 0 < lower < x:
            break
        x = lower
    return x * mtbf_s


FORMULAS: dict[Formula, Callable[[float, float], float]] = {"young": young, "daly": daly, "exact": exact}


def slowdown(tau_s: float, mtbf_s: float, cost_s: float, restart_s: float = 0.0) -> float:
    """Expected wall seconds for one second of new training, at least 1; inf when it would never end.

    (M/tau) exp(R/M) (exp((tau + C)/M) - 1), Daly's model.
    """
    try:
        return mtbf_s / tau_s * math.exp(restart_s / mtbf_s) * math.expm1((tau_s + cost_s) / mtbf_s)
    except OverflowError:
        return math.inf


def ettr(tau_s: float, mtbf_s: float, cost_s: float, restart_s: float = 0.0) -> float:
    """Effective training time ratio: the share of wall time that trains something new, 0 to 1."""
    return 1 / slowdown(tau_s, mtbf_s, cost_s, restart_s)


def overhead(tau_s: float, mtbf_s: float, cost_s: float) -> float:
    """Share of wall time, 0 to 1, that goes into saves and repeated steps: what the interval decides."""
    return 1 - ettr(tau_s, mtbf_s, cost_s)


def nearest_integer(tau_s: float, step_s: float) -> int:
    """Whole steps nearest to tau, at least one."""
    return max(1, math.floor(tau_s / step_s + 0.5))


def best_integer(tau_s: float, *, mtbf_s: float, cost_s: float, step_s: float, restart_s: float = 0.0) -> int:
    """The cheaper of the two whole numbers of steps around tau, by expected cost; at least one."""
    below = max(1, math.floor(tau_s / step_s))
    return min(below, below + 1, key=lambda steps: slowdown(steps * step_s, mtbf_s, cost_s, restart_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Saving every `steps` steps, and what it is expected to cost."""

    formula: str  # which formula chose it, "" when a person did
    tau_s: float  # what the formula said before rounding to whole steps
    steps: int
    interval_s: float  # steps times the step time
    save_share: float  # of the time between two saves, how much the save takes: C/(tau + C)
    loss_s: float  # training lost by one failure on average: half of the interval
    overhead: float  # share of wall time that goes into saves and repeated steps
    ettr: float  # share of wall time that trains something new, restarts counted too


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The choice of the wanted formula, with those of all formulas beside it."""

    chosen: Choice
    alternatives: tuple[Choice, ...]  # every formula, the chosen one included
    warnings: tuple[str, ...]

    @property
    def steps(self) -> int:
        return self.chosen.steps

    @property
    def interval_s(self) -> float:
        return self.chosen.interval_s

    @property
    def overhead(self) -> float:
        return self.chosen.overhead

    @property
    def ettr(self) -> float:
        return self.chosen.ettr


def judge(
    steps: int,
    *,
    mtbf_s: float,
    cost_s: float,
    step_s: float,
    restart_s: float = 0.0,
    formula: str = "",
    tau_s: float | None = None,
) -> Choice:
    """What saving every `steps` steps costs, whoever chose it."""
    interval_s = steps * step_s
    return Choice(
        formula=formula,
        tau_s=interval_s if tau_s is None else tau_s,
        steps=steps,
        interval_s=interval_s,
        save_share=cost_s / (interval_s + cost_s),
        loss_s=interval_s / 2,
        overhead=overhead(interval_s, mtbf_s, cost_s),
        ettr=ettr(interval_s, mtbf_s, cost_s, restart_s),
    )


def advise(formula: Formula, mtbf_s: float, cost_s: float, step_s: float, restart_s: float = 0.0) -> Advice:
    """The number of steps between two saves by `formula`, with its expected cost.

    young rounds to the nearest step, as its table is usually printed; daly and exact take the cheaper
    neighbour. restart_s: all time from a failure to the first new step; it moves the ETTR, not the
    optimum. Raises ValueError for times that are not positive and finite (restart_s may be 0).
    """
    for name, value in (("mtbf_s", mtbf_s), ("cost_s", cost_s), ("step_s", step_s)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}, expected a positive time in seconds")
    if not 0 <= restart_s < math.inf:
        raise ValueError(f"restart_s is {restart_s}, expected a time in seconds")

    def choose(name: Formula) -> Choice:
        tau_s = FORMULAS[name](mtbf_s, cost_s)
        if name == "young":
            steps = nearest_integer(tau_s, step_s)
        else:
            steps = best_integer(tau_s, mtbf_s=mtbf_s, cost_s=cost_s, step_s=step_s, restart_s=restart_s)
        return judge(
            steps,
            mtbf_s=mtbf_s,
            cost_s=cost_s,
            step_s=step_s,
            restart_s=restart_s,
            formula=name,
            tau_s=tau_s,
        )

    choices = {name: choose(name) for name in FORMULAS}
    chosen = choices[formula]
    warnings = []
    if cost_s >= 2 * mtbf_s:
        warnings.append("one save takes longer than two mean times between failures: most saves never finish")
    if chosen.ettr < _LOW_ETTR:
        warnings.append(
            f"only {100 * chosen.ettr:.0f} % of the time trains something new: no interval can mend this, "
            "make the save or the restart shorter"
        )
    return Advice(chosen=chosen, alternatives=tuple(choices.values()), warnings=tuple(warnings))


def around(
    advice: Advice, *, mtbf_s: float, cost_s: float, step_s: float, restart_s: float = 0.0
) -> tuple[Choice, ...]:
    """What all formulas chose and some intervals beside it, ascending: how flat the optimum is.

    Formulas that chose the same number of steps share one entry.
    """
    names: dict[int, list[str]] = {}
    for choice in advice.alternatives:
        names.setdefault(choice.steps, []).append(choice.formula)
    for factor in (0.25, 0.5, 0.75, 1.5, 2, 4):
        names.setdefault(max(1, round(advice.steps * factor)), [])
    return tuple(
        judge(
            steps,
            mtbf_s=mtbf_s,
            cost_s=cost_s,
            step_s=step_s,
            restart_s=restart_s,
            formula=", ".join(names[steps]),
        )
        for steps in sorted(names)
    )
