"""`trainctl mtbf`: what failures cost (`report`), and how often to save (`plan`)."""

from __future__ import annotations

import difflib
import json
import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainctl.cli import ui
from trainctl.errors import TrainctlError
from trainctl.job.units import human_seconds

if TYPE_CHECKING:
    from trainctl.job.plan import Plan
    from trainctl.ledger import interval
    from trainctl.ledger.report import JobReport, SaveAdvice
    from trainctl.ledger.store import LedgerView

_DEFAULT_CONFIG = Path("trainctl.toml")
_DEFAULT_LEDGER = Path("runs/ledger")
_UNIT_S = {"ms": 1e-3, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)
_LONGEST_S = 1e10  # three hundred years
_SHOWN_PROBLEMS = 5


class FormulaName(str, Enum):
    """How the interval is computed."""

    YOUNG = "young"
    DALY = "daly"
    EXACT = "exact"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="What failures cost, and the save interval that follows.", no_args_is_help=True)
    group.command(name="report")(report)
    group.command(name="plan")(plan)
    app.add_typer(group, name="mtbf")


def report(
    config: Annotated[
        Path | None,
        typer.Argument(help="Configuration file; ./trainctl.toml if there is one.", show_default=False),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option("--ledger", metavar="DIR", help="Ledger to read instead of the configuration's."),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Only this job.")] = None,
    last: Annotated[
        str | None, typer.Option("--last", metavar="TIME", help="Only the last 30d, 12h, ...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
) -> None:
    """Interruptions, MTBF, where the time went, and the best save interval."""
    from trainctl.ledger.report import report as report_job
    from trainctl.ledger.report import report_values
    from trainctl.ledger.store import read_ledger

    now = time.time()
    since = -math.inf if last is None else now - parse_duration(last, "--last")
    built = None
    if config is not None or (ledger is None and _DEFAULT_CONFIG.exists()):
        from trainctl.run.planning import build_plan

        built = build_plan(config or _DEFAULT_CONFIG, [])
    directory = ledger or (Path(built.ledger_dir) if built is not None else _DEFAULT_LEDGER)
    if ledger is not None and not ledger.is_dir():
        raise TrainctlError(
            "ledger-absent",
            f"{ledger} is not a directory",
            hint="name the directory with the .jsonl files, usually runs/ledger",
        )
    view = read_ledger(directory)
    _say_problems(view)
    reports = [
        report_job(view.of_job(name), since=since, **_from_plan(built, name))
        for name in _wanted_jobs(view, job, built, directory)
    ]
    if as_json:
        ui.data(
            _json(
                {
                    "version": 1,
                    "ledger": str(directory),
                    "jobs": [report_values(result) for result in reports],
                    "problems": [asdict(problem) for problem in view.problems],
                }
            )
        )
        return
    if not reports:
        ui.out().print(f"nothing recorded in {directory} yet", markup=False)
        ui.out().print("next: trainctl launch; every attempt is recorded there", markup=False)
    for number, result in enumerate(reports):
        if number:
            ui.out().print()
        show_report(result, now=now)


def plan(
    cost: Annotated[str, typer.Option("--cost", metavar="TIME", help="Time that one save blocks training.")],
    mtbf: Annotated[
        str, typer.Option("--mtbf", metavar="TIME", help="Mean time between failures of the job.")
    ],
    step: Annotated[str, typer.Option("--step", metavar="TIME", help="Time of one step.")],
    restart: Annotated[
        str, typer.Option("--restart", metavar="TIME", help="From a failure to the first new step.")
    ] = "0s",
    formula: Annotated[
        FormulaName, typer.Option("--formula", help="The one that decides; all are shown.")
    ] = FormulaName.YOUNG,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
) -> None:
    """How many steps between two saves, from times like 490, 490s, 8.2min, 24h, 3d; reads no ledger."""
    from trainctl.ledger import interval

    times = {
        "mtbf_s": parse_duration(mtbf, "--mtbf"),
        "cost_s": parse_duration(cost, "--cost"),
        "step_s": parse_duration(step, "--step"),
        "restart_s": parse_duration(restart, "--restart", zero=True),
    }
    advice = interval.advise(formula.value, **times)
    around = interval.around(advice, **times)
    if as_json:
        ui.data(_json({**times, **asdict(advice), "around": [asdict(choice) for choice in around]}))
        return
    chosen = advice.chosen
    out = ui.out()
    out.print(
        f"save every {_steps(chosen.steps)} ({human_seconds(chosen.interval_s)}) · "
        f"{chosen.formula}: {human_seconds(chosen.tau_s)} = {chosen.tau_s / times['step_s']:.1f} steps",
        style="bold",
        markup=False,
    )
    for line in _choice_lines(chosen):
        out.print(f"  {line}", markup=False)
    for warning in advice.warnings:
        out.print(f"  warning: {warning}", style="yellow", markup=False)
    out.print()
    rows = [
        (
            f"{choice.steps:,}",
            human_seconds(choice.interval_s),
            _percent(choice.save_share),
            human_seconds(choice.loss_s),
            _percent(choice.overhead),
            _percent(choice.ettr),
            choice.formula,
        )
        for choice in around
    ]
    heads = ("save_steps", "interval", "saves", "lost per failure", "overhead", "ETTR", "formula")
    _print_table(heads, rows, left=(6,))


def parse_duration(text: str, name: str, *, zero: bool = False) -> float:
    """ "490", "490s", "8.2min", "24h", "3d" in seconds. Raises TrainctlError that names `name`."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNIT_S.get(match[2].lower() or "s", math.nan) if match else math.nan
    if math.isnan(seconds):
        raise TrainctlError(
            "duration-invalid",
            f"{name} is {text!r}, expected a time such as 490, 490s, 8.2min, 24h or 3d",
        )
    if seconds > _LONGEST_S or (seconds < 1e-6 and not (zero and seconds == 0)):
        least = "0 s" if zero else "1 us"
        raise TrainctlError(
            "duration-invalid",
            f"{name} is {text!r}, expected a time from {least} to {human_seconds(_LONGEST_S)}",
        )
    return seconds


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
        _print_table(
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
        _print_table(("where the time went", "share", "time"), rows, left=(0,))


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
    words = f"{_percent(result.goodput)} of wall time"
    if result.save is not None and result.history.failures:
        words += f" · the best these failures allow: {_percent(result.save.best.ettr)}"
    return words


def _save_lines(save: SaveAdvice | None) -> Iterable[tuple[str, str]]:
    if save is None:
        yield "save_steps", "no advice: no step and save were measured"
        return
    best = save.best.chosen
    yield (
        "save_steps",
        f"now {save.now.steps:,}; best {best.steps:,} ({human_seconds(best.interval_s)}); "
        f"worth {_percent(save.worth)} of the cluster",
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


def _choice_lines(choice: interval.Choice) -> Iterable[str]:
    yield f"{_percent(choice.save_share)} of the time between two saves goes into the save"
    yield f"one failure costs {human_seconds(choice.loss_s)} of redone steps on average, and the restart"
    yield f"saves and redone steps together take {_percent(choice.overhead)} of wall time"
    yield f"{_percent(choice.ettr)} of wall time trains something new (ETTR), restarts counted"


def _wanted_jobs(view: LedgerView, job: str | None, built: Plan | None, directory: Path) -> Sequence[str]:
    """--job, else the configuration's job, else all."""
    if job is not None and job not in view.jobs:
        near = difflib.get_close_matches(job, view.jobs, 1)
        raise TrainctlError(
            "job-unknown",
            f"no job {job!r} in {directory}, found {', '.join(view.jobs) or 'none'}",
            hint=f"--job {near[0]}" if near else "leave out --job for all of them",
        )
    if job is not None:
        return (job,)
    if built is not None:
        name = built.settings.job.name
        return (name,) if name in view.jobs else ()
    return view.jobs


def _from_plan(built: Plan | None, job: str) -> dict[str, Any]:
    """What the configuration knows better than the ledger, when it is this job's."""
    if built is None or built.settings.job.name != job:
        return {}
    prior_h = built.settings.ledger.prior_mtbf_h
    return {
        "formula": built.settings.checkpoint.formula,
        "save_steps": built.save.steps,
        "prior_s": None if prior_h == "auto" else prior_h * 3600,
    }


def _say_problems(view: LedgerView) -> None:
    for problem in view.problems[:_SHOWN_PROBLEMS]:
        ui.say(f"{problem.file}:{problem.line}: {problem.reason}; not counted")
    if len(view.problems) > _SHOWN_PROBLEMS:
        ui.say(f"{len(view.problems) - _SHOWN_PROBLEMS} more lines are not counted")


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f}".removesuffix(".0") + " h" if seconds >= 3600 else _time(seconds)


def _time(seconds: float) -> str:
    return human_seconds(seconds) if seconds else "0 s"


def _local(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s):%d %b %Y %H:%M}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _steps(steps: int) -> str:
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


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> None:
    """Columns in `left` to the left, numbers to the right. As wide as it needs: nothing is ever cut."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for number, row in enumerate((heads, *rows)):
        cells = [
            f"{cell:<{width}}" if index in left else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(cells).rstrip()
        ui.out().print(f"  {line}", style=None if number else "dim", markup=False)


def _json(value: Any) -> str:
    return json.dumps(_finite(value), indent=2, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    """JSON has no infinity: unbounded is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
