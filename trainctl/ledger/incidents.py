"""From attempts to incidents: what counts as a failure, and how long training was exposed to one.

Pure. An incident lasts from a failure to the first new durable step. Attempts that fail before that
belong to it, so a crash loop is one incident; and their time is not exposure, because no further
failure could be counted in it. Planned stops are no failures but their training time stays. An attempt
that fails before its first step, or by a mistake in its start, is a start-up failure and is counted
apart: counting typing errors would collapse the MTBF.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

from trainctl.ledger.store import Attempt, AttemptEnd

# Causes, or groups of causes, that say the start itself was wrong, however far it came. An error in the
# code is none of them: once the run has made steps, it costs a rollback like any other failure.
STARTUP_CAUSES = frozenset({"startup", "user.config"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Training time of one attempt: first step to failure or stop, unix seconds."""

    begin: float
    end: float
    failed: bool  # ended in the failure that opened an incident

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One interruption. `attempts` are all that failed in it, the first one gave it its cause."""

    run_id: str
    job: str
    attempts: tuple[int, ...]
    time: float  # of the failure, unix seconds
    cause: str
    detail: str
    rank: int | None
    fingerprint: str
    hosts: tuple[str, ...]
    lost_steps: int  # completed and not durable at the first failure
    recovered: bool  # a newer durable step has been reached since


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What happened, sorted out. Everything is in order of time."""

    exposures: tuple[Exposure, ...]
    incidents: tuple[Incident, ...]
    startup_failures: tuple[Attempt, ...]
    planned: tuple[Attempt, ...]
    finished: tuple[Attempt, ...]
    open: tuple[Attempt, ...]  # still running, or lost with their supervisor

    @property
    def exposure_s(self) -> float:
        return math.fsum(exposure.seconds for exposure in self.exposures)

    @property
    def failures(self) -> int:
        return len(self.incidents)

    @property
    def failure_times_s(self) -> tuple[float, ...]:
        """Where on the axis of training time each incident lies, 0 to exposure_s."""
        times: list[float] = []
        passed = 0.0
        for exposure in self.exposures:
            passed += exposure.seconds
            if exposure.failed:
                times.append(passed)
        return tuple(times)

    def since(self, time: float) -> History:
        """The part after `time` (unix seconds). An attempt is where its end is."""

        def recent(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
            return tuple(a for a in attempts if _ended_at(a) >= time)

        return replace(
            self,
            exposures=tuple(replace(e, begin=max(e.begin, time)) for e in self.exposures if e.end >= time),
            incidents=tuple(incident for incident in self.incidents if incident.time >= time),
            startup_failures=recent(self.startup_failures),
            planned=recent(self.planned),
            finished=recent(self.finished),
        )


def _ended_at(attempt: Attempt) -> float:
    return attempt.start.time if attempt.end is None else attempt.end.time


@dataclass(slots=True, kw_only=True)
class _Sorting:
    """Where the attempts of all runs are collected."""

    exposures: list[Exposure] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    startup_failures: list[Attempt] = field(default_factory=list)
    planned: list[Attempt] = field(default_factory=list)
    finished: list[Attempt] = field(default_factory=list)
    open: list[Attempt] = field(default_factory=list)


def history(attempts: Iterable[Attempt]) -> History:
    """Sort out the attempts of any number of runs; their order does not matter."""
    found = _Sorting()
    by_run = sorted(attempts, key=lambda a: (a.start.run_id, a.start.attempt))
    for _, run in groupby(by_run, key=lambda a: a.start.run_id):
        _sort_run(run, found)
    return History(
        exposures=tuple(sorted(found.exposures, key=lambda e: (e.end, e.begin))),
        incidents=tuple(sorted(found.incidents, key=lambda i: (i.time, i.run_id, i.attempts))),
        startup_failures=tuple(sorted(found.startup_failures, key=_ended_at)),
        planned=tuple(sorted(found.planned, key=_ended_at)),
        finished=tuple(sorted(found.finished, key=_ended_at)),
        open=tuple(sorted(found.open, key=_ended_at)),
    )


def _sort_run(run: Iterable[Attempt], found: _Sorting) -> None:
    reached = 0  # newest durable step of the run so far
    broken: list[Attempt] = []  # the attempts that failed in the incident that is not over
    for attempt in run:
        end = attempt.end
        if end is None:
            found.open.append(attempt)
            continue
        progress = _progress(end)
        if broken and (progress > reached or end.exit_code == 0):
            found.incidents.append(_incident(broken, recovered=True))
            broken = []
        reached = max(reached, progress)

        failed = end.exit_code != 0 and not end.planned
        startup = not STARTUP_CAUSES.isdisjoint((end.cause, end.cause.split(".")[0]))
        counts = failed and not startup and (attempt.new_steps > 0 or bool(broken))
        if attempt.new_steps and not broken:
            began = attempt.start.time if end.first_step_at is None else end.first_step_at
            found.exposures.append(Exposure(begin=began, end=_stopped_at(end), failed=counts))
        if counts:
            broken.append(attempt)
        elif failed:
            found.startup_failures.append(attempt)
        elif end.exit_code != 0:
            found.planned.append(attempt)
        else:
            found.finished.append(attempt)
    if broken:
        found.incidents.append(_incident(broken, recovered=False))


def _progress(end: AttemptEnd) -> int:
    """Steps that cannot be lost any more. A trainer that does not say has to be believed by its steps."""
    return end.last_step if end.durable_step is None else end.durable_step


def _stopped_at(end: AttemptEnd) -> float:
    return end.time if end.failed_at is None else end.failed_at


def _incident(broken: list[Attempt], *, recovered: bool) -> Incident:
    first = broken[0]
    end = first.end
    assert end is not None
    return Incident(
        run_id=end.run_id,
        job=end.job,
        attempts=tuple(attempt.start.attempt for attempt in broken),
        time=_stopped_at(end),
        cause=end.cause,
        detail=end.detail,
        rank=end.rank,
        fingerprint=end.fingerprint,
        hosts=first.start.hosts,
        lost_steps=0 if end.durable_step is None else max(0, end.last_step - end.durable_step),
        recovered=recovered,
    )
