"""What the records of one job say: failures, goodput, and the save interval that follows from both.

Pure: values in, values out; the command line renders them. Times in seconds, shares 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from trainctl.ledger import goodput, interval, mtbf
from trainctl.ledger.goodput import Bucket
from trainctl.ledger.incidents import History, history
from trainctl.ledger.store import Attempt, AttemptEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """All incidents of one cause."""

    cause: str
    incidents: int
    lost_steps: int
    last: float  # unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAdvice:
    """Today's save interval against the best one."""

    mtbf_s: float  # that the formula was given
    prior_s: float  # one failure in this time was assumed
    recorded: bool  # mtbf_s is that of the records alone
    cost_s: float
    step_s: float
    restart_s: float
    now: interval.Choice
    best: interval.Advice

    @property
    def worth(self) -> float:
        """Share of the cluster that the better interval is worth."""
        return max(0.0, self.best.ettr - self.now.ettr)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """`save` is None while no step or no save was measured."""

    job: str
    nodes: int
    begin: float  # first record in the window, unix seconds
    end: float
    history: History
    estimate: mtbf.Estimate
    causes: tuple[CauseRow, ...]
    buckets: dict[Bucket, float]
    save: SaveAdvice | None

    @property
    def wall_s(self) -> float:
        return math.fsum(self.buckets.values())

    @property
    def goodput(self) -> float | None:
        """Kept steps as a share of wall time; None when no attempt has ended."""
        return self.buckets[Bucket.STEPS_KEPT] / self.wall_s if self.wall_s > 0 else None


def report(
    attempts: Sequence[Attempt],
    *,
    formula: interval.Formula = "young",
    since: float = -math.inf,
    save_steps: int | None = None,
    prior_s: float | None = None,
) -> JobReport:
    """Report on the attempts of one job, at least one; only what lies after `since` (unix seconds) counts.

    save_steps: what the configuration says now, else what the newest attempt used. prior_s: MTBF of the
    job that is assumed while little is recorded, else that of published clusters for this many nodes.
    """
    newest = max(attempts, key=lambda a: a.start.time)
    nodes = len(set(newest.start.hosts)) or 1
    past = history(attempts).since(since)
    estimate = mtbf.estimate(past.exposure_s, past.failure_times_s)
    shares = {(a.start.run_id, a.start.attempt): _share_after(a, since) for a in attempts}
    recent = [a for a in attempts if shares[a.start.run_id, a.start.attempt] > 0]
    first = min(a.began for a in recent or attempts)
    buckets = goodput.totals(attempts, shares)
    return JobReport(
        job=newest.start.job,
        nodes=nodes,
        begin=max(since, first),
        end=max(a.start.time if a.end is None else a.end.time for a in attempts),
        history=past,
        estimate=estimate,
        causes=_causes(past),
        buckets=buckets,
        save=_save_advice(
            recent,
            buckets,
            estimate,
            formula=formula,
            now_steps=save_steps or newest.start.save_steps,
            prior_s=prior_s or mtbf.prior_s(nodes),
        ),
    )


def _share_after(attempt: Attempt, since: float) -> float:
    """How much of the attempt's wall time lies after `since`: buckets carry no times, so spread evenly."""
    if attempt.end is None or attempt.end.time < since:
        return 0.0
    wall_s = math.fsum(attempt.end.buckets.values())
    return min(1.0, (attempt.end.time - since) / wall_s) if wall_s > 0 else 1.0


def _causes(past: History) -> tuple[CauseRow, ...]:
    names = dict.fromkeys(incident.cause or "unknown" for incident in past.incidents)
    rows = []
    for name in names:
        own = [incident for incident in past.incidents if (incident.cause or "unknown") == name]
        rows.append(
            CauseRow(
                cause=name,
                incidents=len(own),
                lost_steps=sum(incident.lost_steps for incident in own),
                last=max(incident.time for incident in own),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.incidents, row.cause)))


def _save_advice(
    attempts: Sequence[Attempt],
    buckets: dict[Bucket, float],
    estimate: mtbf.Estimate,
    *,
    formula: interval.Formula,
    now_steps: int,
    prior_s: float,
) -> SaveAdvice | None:
    ends = [a.end for a in attempts if a.end is not None]
    cost_s, step_s = save_cost_s(ends), step_time_s(ends)
    if cost_s is None or step_s is None:
        return None
    trained = sum(1 for a in attempts if a.new_steps)
    restart_s = buckets[Bucket.STARTUP] / max(1, trained)
    restart_s += (buckets[Bucket.DETECTION] + buckets[Bucket.TEARDOWN]) / max(1, estimate.failures)
    mtbf_s = mtbf.for_interval_s(estimate.exposure_s, estimate.failures, prior_s)
    return SaveAdvice(
        mtbf_s=mtbf_s,
        prior_s=prior_s,
        recorded=mtbf_s == estimate.mtbf_s,
        cost_s=cost_s,
        step_s=step_s,
        restart_s=restart_s,
        now=interval.judge(now_steps, mtbf_s=mtbf_s, cost_s=cost_s, step_s=step_s, restart_s=restart_s),
        best=interval.advise(formula, mtbf_s, cost_s, step_s, restart_s),
    )


def save_cost_s(ends: Sequence[AttemptEnd]) -> float | None:
    """Mean seconds that one save blocked training; None when none was measured."""
    measured = [(end.save_s, end.saves) for end in ends if end.save_s and end.save_s > 0 and end.saves > 0]
    saves = sum(count for _, count in measured)
    return math.fsum(save_s * count for save_s, count in measured) / saves if saves else None


def step_time_s(ends: Sequence[AttemptEnd]) -> float | None:
    """Median over the attempts of their median step, in seconds; None when none was measured."""
    measured = [end.step_s for end in ends if end.step_s and end.step_s > 0]
    return median(measured) if measured else None


def report_values(result: JobReport) -> dict[str, Any]:
    """The report as plain values for JSON; inf where nothing bounds a number."""
    past, save = result.history, result.save
    return {
        "job": result.job,
        "nodes": result.nodes,
        "begin": result.begin,
        "end": result.end,
        "incidents": [asdict(incident) for incident in past.incidents],
        "planned": len(past.planned),
        "finished": len(past.finished),
        "startup_failures": len(past.startup_failures),
        "open": [{"run_id": a.start.run_id, "attempt": a.start.attempt} for a in past.open],
        "mtbf": {**asdict(result.estimate), "trend": result.estimate.trend},
        "causes": [asdict(row) for row in result.causes],
        "wall_s": result.wall_s,
        "buckets_s": {bucket.value: seconds for bucket, seconds in result.buckets.items()},
        "goodput": result.goodput,
        "save": None if save is None else {**asdict(save), "worth": save.worth},
    }
