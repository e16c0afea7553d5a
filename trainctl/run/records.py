"""What the step records of an attempt add up to. Reads the trainer's files; decides nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainctl.job.rundir import AttemptDir, read_json_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Lowest rank that left records. Times are unix seconds; a span is (end, seconds).

    steps: (completed step, end, seconds) in the order in which they were written.
    """

    steps: tuple[tuple[int, float, float], ...] = ()
    saves: tuple[tuple[float, float], ...] = ()
    evaluations: tuple[tuple[float, float], ...] = ()

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step; the first one, which compiles and allocates, is left out."""
        seconds = [seconds for _, _, seconds in self.steps[1:] or self.steps]
        return statistics.median(seconds) if seconds else None

    @property
    def save_s(self) -> float | None:
        """Mean seconds that one save blocked training."""
        return statistics.mean(seconds for _, seconds in self.saves) if self.saves else None

    @property
    def first_step_start(self) -> float | None:
        return self.steps[0][1] - self.steps[0][2] if self.steps else None


def read_records(attempt: AttemptDir) -> Records:
    """The records of the lowest rank that left any."""
    for rank in attempt.ranks("steps"):
        records = from_lines(read_json_lines(attempt.steps(rank)))
        if records.steps or records.saves:
            return records
    return Records()


def from_lines(lines: Iterable[dict[str, Any]]) -> Records:
    """Lines without a number where one is due are left out: foreign trainers write what they like."""
    steps: list[tuple[int, float, float]] = []
    saves: list[tuple[float, float]] = []
    evaluations: list[tuple[float, float]] = []
    before: float | None = None
    for line in lines:
        kind, end = line.get("kind"), line.get("time")
        if not isinstance(end, (int, float)):
            continue
        seconds = line.get("seconds")
        if kind == "step" and line.get("accepted") is False:
            pass  # it took time and completed nothing
        elif kind == "step" and isinstance(line.get("step"), int):
            if not isinstance(seconds, (int, float)):
                # a trainer that does not time its steps: the time since its last record
                seconds = end - before if before is not None else 0.0
            steps.append((line["step"], float(end), max(0.0, float(seconds))))
        elif isinstance(seconds, (int, float)) and kind == "checkpoint":
            saves.append((float(end), float(seconds)))
        elif isinstance(seconds, (int, float)) and kind == "evaluation":
            evaluations.append((float(end), float(seconds)))
        before = float(end)
    return Records(steps=tuple(steps), saves=tuple(saves), evaluations=tuple(evaluations))
