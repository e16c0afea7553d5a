"""Mean time between failures from few events, with the uncertainty that few events have.

Pure. Times in seconds. Model: failures come at random at a constant rate (exponential distances), and
observation stopped at a moment that no failure chose (time-truncated).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# One node's MTBF while nothing is recorded: 4 hardware failures in 1,000 node-days, the middle of what
# large clusters published (2.1 to 6.5; Llama 3 had 3.8), is 6,000 h.
NODE_MTBF_S = 6000 * 3600.0

CONFIDENCE = 0.95
_TREND_U = 1.96  # two-sided 5 % point of the normal distribution
_TREND_EVENTS = 4  # with fewer the normal approximation of Laplace's statistic is not worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What `failures` events in `exposure_s` seconds of training say about the MTBF.

    mtbf_s: maximum likelihood, inf without failures. low_s, high_s: exact interval at `confidence`;
    without failures low_s is the one-sided bound and high_s inf. trend_u: Laplace's statistic, above 0
    when failures come closer together, None for too few events.
    """

    exposure_s: float
    failures: int
    mtbf_s: float
    low_s: float
    high_s: float
    confidence: float
    trend_u: float | None

    @property
    def trend(self) -> str:
        """The trend in words."""
        if self.trend_u is None:
            return "too few to see a trend"
        if self.trend_u <= -_TREND_U:
            return "improving"
        return "worsening" if self.trend_u >= _TREND_U else "no trend"


def estimate(exposure_s: float, failure_times_s: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Estimate from the positions of all failures on the axis of training time, each 0 to exposure_s."""
    failures = len(failure_times_s)
    low_s, high_s = interval(exposure_s, failures, confidence)
    return Estimate(
        exposure_s=exposure_s,
        failures=failures,
        mtbf_s=exposure_s / failures if failures else math.inf,
        low_s=low_s if failures else lower_bound(exposure_s, 0, confidence),
        high_s=high_s,
        confidence=confidence,
        trend_u=laplace(exposure_s, failure_times_s) if failures >= _TREND_EVENTS else None,
    )


def interval(exposure_s: float, failures: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Two-sided interval [2T/chi2(1-a/2; 2n+2), 2T/chi2(a/2; 2n)]; the upper end is inf for n = 0."""
    from scipy.special import chdtri  # only here: importing it takes longer than most commands

    tail = (1 - confidence) / 2
    high_s = 2 * exposure_s / float(chdtri(2 * failures, 1 - tail)) if failures else math.inf
    return lower_bound(exposure_s, failures, 1 - tail), high_s


def lower_bound(exposure_s: float, failures: int, confidence: float = CONFIDENCE) -> float:
    """One-sided: the MTBF is at least this, 2T/chi2(1-a; 2n+2). For n = 0 and 95 % about T/3."""
    from scipy.special import chdtri

    return 2 * exposure_s / float(chdtri(2 * failures + 2, 1 - confidence))


def laplace(exposure_s: float, failure_times_s: Sequence[float]) -> float:
    """Laplace's trend statistic (mean(t) - T/2) / (T sqrt(1/(12 n))), standard normal without a trend."""
    count = len(failure_times_s)
    if not count or exposure_s <= 0:
        return 0.0
    mean = math.fsum(failure_times_s) / count
    return (mean - exposure_s / 2) / (exposure_s * math.sqrt(1 / (12 * count)))


def prior_s(nodes: int) -> float:
    """MTBF of a job on `nodes` nodes while nothing is recorded: any node stops it."""
    return NODE_MTBF_S / max(1, nodes)


def plug_in_s(exposure_s: float, failures: int, assumed_s: float) -> float:
    """Records with one assumed failure in `assumed_s` added: (b + T) / (1 + n).

    One over the mean rate of a Gamma(1, b) prior after n failures in T. The cost of an interval is
    linear in the rate, so the mean rate is what minimises it, not the mean MTBF.
    """
    return (assumed_s + exposure_s) / (1 + failures)


def for_interval_s(exposure_s: float, failures: int, assumed_s: float) -> float:
    """The MTBF to put into an interval formula.

    The assumption tempers good luck and never contradicts bad: seven failures in six hours are an MTBF
    of 51 min, however reliable such nodes are elsewhere (the prior alone would still say 375 h).
    """
    mtbf_s = plug_in_s(exposure_s, failures, assumed_s)
    return min(mtbf_s, exposure_s / failures) if failures and exposure_s > 0 else mtbf_s
