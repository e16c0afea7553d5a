"""How `trainctl mtbf` shows what it found: words, aligned columns, shares that add up to 100 %."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from trainctl.cli import ui
from trainctl.job.units import human_seconds

if TYPE_CHECKING:
    from trainctl.ledger import interval
    from trainctl.ledger.report import JobReport, SaveAdvice


def show_report(result: JobReport, *, now: float) -> None:
    """One job on stdout: the figures, then causes, then where the time went."""
    past = result.history
    nodes = f"{result.nodes} node{'s' if result.nodes > 1 else ''}"
    span = _time(max(0.0, result.end - result.begin))
    out = ui.out()
    out.print(
        f"{result.job} on {nodes} · {span} · {_time(past.exposure_s)} of training",
        style="bold",
        markup=False,
    )
    lines = [
        (
            "interruptions",
            f"{past.failures} unplanned, {len(past.planned)} planned stop{_s(len(past.planned))}, "
            f"{len(past.startup_failures)} start-up failure{_s(len(past.startup_failures))} (counted apart)",
        ),
        ("MTBF", _mtbf_words(result)),
        ("goodput", _goodput_words(result)),
        *_save_lines(result.save),
    ]
    for attempt in past.open:
        age = human_seconds(max(0.0, now - attempt.start.time))
        state = "running, or lost with its supervisor; not counted"
        lines.append(
            ("open", f"attempt {attempt.start.attempt} of {attempt.start.run_id}, {age} old: {state}")
        )
    for name, words in lines:
        out.print(f"  {name:<14} {words}", markup=False)
    if result.causes:
        out.print()
        print_table(
            ("cause", "interruptions", "steps lost", "last"),
            [
                (row.cause, f"{row.incidents:,}", f"{row.lost_steps:,}", _local(row.last))
                for row in result.causes
            ],
            left=(0, 3),
        )
    if result.wall_s > 0:
        out.print()
        shares = _tenths(list(result.buckets.values()))
        rows = [
            (bucket.value.replace("_", " "), f"{share:.1f} %", _time(seconds))
            for (bucket, seconds), share in zip(result.buckets.items(), shares, strict=True)
        ]
        rows.append(("wall time", f"{math.fsum(shares):.1f} %", human_seconds(result.wall_s)))
        print_table(("where the time went", "share", "time"), rows, left=(0,))


def _mtbf_words(result: JobReport) -> str:
    found = result.estimate
    if found.exposure_s <= 0:
        return "not known: no training recorded"
    if not found.failures:
        sure = f"{100 * found.confidence:.0f} % sure"
        return f"not known: no interruption yet, so at least {_hours(found.low_s)} ({sure})"
    trend = found.trend if found.trend_u is None else f"{found.trend} (Laplace {found.trend_u:+.1f})"
    span = f"[{_hours(found.low_s)}, {_hours(found.high_s)}] {100 * found.confidence:.0f} %"
    return f"{_hours(found.mtbf_s)} {span}, {trend}"


def _goodput_words(result: JobReport) -> str:
    if result.goodput is None:
        return "not known: no attempt has ended"
    words = f"{percent(result.goodput)} of wall time"
    if result.save is not None and result.history.failures:
        words += f" · the best these failures allow: {percent(result.save.best.ettr)}"
    return words


def _save_lines(save: SaveAdvice | None) -> Iterable[tuple[str, str]]:
    if save is None:
        yield "save_steps", "no advice: no step and save were measured"
        return
    best = save.best.chosen
    yield (
        "save_steps",
        f"now {save.now.steps:,}; best {best.steps:,} ({human_seconds(best.interval_s)}); "
        f"worth {percent(save.worth)} of the cluster",
    )
    basis = "recorded" if save.recorded else f"with one failure in {_hours(save.prior_s)} assumed"
    yield (
        "",
        f"{best.formula}: MTBF {_hours(save.mtbf_s)} ({basis}), "
        f"save {human_seconds(save.cost_s)}, step {human_seconds(save.step_s)}, "
        f"restart {human_seconds(save.restart_s)}",
    )
    for warning in save.best.warnings:
        yield "warning", warning


def choice_lines(choice: interval.Choice) -> Iterable[str]:
    yield f"{percent(choice.save_share)} of the time between two saves goes into the save"
    yield f"one failure costs {human_seconds(choice.loss_s)} of redone steps on average, and the restart"
    yield f"saves and redone steps together take {percent(choice.overhead)} of wall time"
    yield f"{percent(choice.ettr)} of wall time trains something new (ETTR), restarts counted"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f}".removesuffix(".0") + " h" if seconds >= 3600 else _time(seconds)


def _time(seconds: float) -> str:
    return human_seconds(seconds) if seconds else "0 s"


def _local(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s):%d %b %Y %H:%M}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def steps_words(steps: int) -> str:
    return f"{steps:,} step{_s(steps)}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _tenths(parts: Sequence[float]) -> list[float]:
    """Per cent with one decimal that add up to 100.0: the largest remainders are rounded up."""
    exact = [1000 * part / math.fsum(parts) for part in parts]
    whole = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: whole[i] - exact[i])
    for index in by_remainder[: 1000 - sum(whole)]:
        whole[index] += 1
    return [value / 10 for value in whole]


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> None:
    """Columns in `left` to the left, numbers to the right. As wide as it needs: nothing is ever cut."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for number, row in enumerate((heads, *rows)):
        cells = [
            f"{cell:<{width}}" if index in left else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(cells).rstrip()
        ui.out().print(f"  {line}", style=None if number else "dim", markup=False)
