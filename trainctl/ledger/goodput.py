"""Where the time of an attempt went: every second in exactly one bucket.

Pure. Stamps in unix seconds, as clocks and trainers left them: late, out of order, overlapping or
missing. Whatever they say, no bucket is negative and the buckets add up to the wall time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from trainctl.ledger.store import Attempt


class Bucket(str, Enum):
    """The closed list, in the order in which reports show it."""

    STEPS_KEPT = "steps_kept"  # new steps that are in a checkpoint, or in the finished run
    STEPS_REDONE = "steps_redone"  # steps that a later attempt has to repeat
    CHECKPOINT = "checkpoint"  # training stood still for a save
    EVALUATION = "evaluation"
    STARTUP = "startup"  # end of the attempt before to the first step, without waits
    DETECTION = "detection"  # failure to its notice
    TEARDOWN = "teardown"  # notice to the last process gone, evidence included
    IDLE = "idle"  # waits between attempts, and what nothing above explains


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One attempt as it was seen. Stamps in unix seconds, None where nothing was seen.

    begin: end of the attempt before, or start of the launch. waits_s: deliberate waiting between begin
    and the first step, such as back-off. Records carry the time at which they ended and how many seconds
    they took. durable_step: newest durable step at the end, None when the trainer does not say.
    finished: the planned last step was reached, so nothing will be repeated.
    """

    begin: float
    end: float
    first_step_start: float | None = None
    failed: float | None = None
    noticed: float | None = None
    waits_s: float = 0.0
    steps: Sequence[tuple[int, float, float]] = ()  # step, end, seconds
    saves: Sequence[tuple[float, float]] = ()  # end, seconds
    evaluations: Sequence[tuple[float, float]] = ()  # end, seconds
    durable_step: int | None = None
    finished: bool = False


_Span = tuple[float, float]


def split(timeline: Timeline) -> dict[Bucket, float]:
    """Seconds in each bucket, all of them present. Their sum is end - begin (0 if that is negative)."""
    wall = max(0.0, timeline.end - timeline.begin)

    def clamp(stamp: float | None, low: float, default: float) -> float:
        """Seconds after begin, not before `low` and not after the end."""
        if stamp is None or not math.isfinite(stamp):
            return max(low, default)
        return min(max(stamp - timeline.begin, low), wall)

    started = clamp(timeline.first_step_start, 0.0, wall)
    noticed_first = clamp(timeline.noticed, 0.0, wall)
    failed = clamp(timeline.failed, 0.0, noticed_first)
    if timeline.first_step_start is None:
        started = failed  # it never trained: all of it was start-up
    failed = max(failed, started)
    noticed = clamp(timeline.noticed, failed, failed if timeline.failed is not None else wall)

    durable = math.inf if timeline.finished or timeline.durable_step is None else timeline.durable_step
    free: list[_Span] = [(started, failed)]

    def take(records: Iterable[tuple[float, float]]) -> float:
        nonlocal free
        taken, free = _take(free, _spans(records, timeline.begin))
        return taken

    # a step's own clock may run through the save or evaluation after it, so these come first
    buckets = {
        Bucket.CHECKPOINT: take(timeline.saves),
        Bucket.EVALUATION: take(timeline.evaluations),
        Bucket.STEPS_KEPT: take((end, took) for step, end, took in timeline.steps if step <= durable),
        Bucket.STEPS_REDONE: take((end, took) for step, end, took in timeline.steps if step > durable),
        Bucket.STARTUP: started - min(max(timeline.waits_s, 0.0), started),
        Bucket.DETECTION: noticed - failed,
        Bucket.TEARDOWN: wall - noticed,
    }
    buckets[Bucket.IDLE] = max(0.0, wall - math.fsum(buckets.values()))
    return {bucket: buckets[bucket] for bucket in Bucket}


def _spans(records: Iterable[tuple[float, float]], origin: float) -> list[_Span]:
    """Disjoint (begin, end) in seconds after `origin`, ascending; nonsense is left out."""
    merged: list[_Span] = []
    usable = (
        (end - took - origin, end - origin) for end, took in records if took > 0 and math.isfinite(end - took)
    )
    for begin, end in sorted(usable):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _take(free: list[_Span], wanted: list[_Span]) -> tuple[float, list[_Span]]:
    """(seconds of `free` that `wanted` covers, what is left of `free`). Both disjoint and ascending."""
    taken: list[float] = []
    left: list[_Span] = []
    index = 0
    for begin, end in free:
        while index < len(wanted) and wanted[index][1] <= begin:
            index += 1
        cursor = begin
        at = index
        while at < len(wanted) and wanted[at][0] < end:
            low, high = max(cursor, wanted[at][0]), min(end, wanted[at][1])
            if low > cursor:
                left.append((cursor, low))
            taken.append(high - low)
            cursor = high
            at += 1
        if cursor < end:
            left.append((cursor, end))
    return math.fsum(taken), left


def totals(
    attempts: Iterable[Attempt], share: Mapping[tuple[str, int], float] | None = None
) -> dict[Bucket, float]:
    """Seconds in each bucket over all attempts that have ended.

    An attempt that came back from an older step than the one before had saved (its checkpoint did not
    verify) repeats steps that were booked as kept: their share of that time moves to steps_redone.
    share: (run_id, attempt) -> how much of the attempt counts, 0 to 1; absent counts whole.
    """
    sums = dict.fromkeys(Bucket, 0.0)
    by_run = sorted(attempts, key=lambda a: (a.start.run_id, a.start.attempt))
    for _, run in groupby(by_run, key=lambda a: a.start.run_id):
        came_back_to = math.inf  # the oldest step that a later attempt of this run started from
        for attempt in reversed(list(run)):
            if attempt.end is not None:
                weight = (share or {}).get((attempt.start.run_id, attempt.start.attempt), 1.0)
                for bucket, seconds in _corrected(attempt, came_back_to).items():
                    sums[bucket] += weight * seconds
            came_back_to = min(came_back_to, _came_back_to(attempt))
    return sums


def _came_back_to(attempt: Attempt) -> float:
    """The step after which this attempt went on; inf when it completed none, as far as is known."""
    # by what it did, not by what it was told: other people's trainers choose their checkpoint themselves
    if attempt.end is None or attempt.end.first_step is None:
        return math.inf
    return attempt.end.first_step - 1


def _corrected(attempt: Attempt, came_back_to: float) -> dict[Bucket, float]:
    end = attempt.end
    assert end is not None
    seconds = dict.fromkeys(Bucket, 0.0)
    for name, value in end.buckets.items():
        known = name in Bucket._value2member_map_
        seconds[Bucket(name) if known else Bucket.IDLE] += max(0.0, value)
    if end.first_step is None or end.durable_step is None:
        return seconds
    kept_steps = min(end.last_step, end.durable_step) - end.first_step + 1
    if kept_steps > 0:
        lost_steps = min(kept_steps, min(end.last_step, end.durable_step) - came_back_to)
        moved = seconds[Bucket.STEPS_KEPT] * max(0.0, lost_steps) / kept_steps
        seconds[Bucket.STEPS_KEPT] -= moved
        seconds[Bucket.STEPS_REDONE] += moved
    return seconds
