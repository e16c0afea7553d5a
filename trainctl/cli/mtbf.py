"""`trainctl mtbf`: what failures cost (`report`), and how often to save (`plan`)."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainctl.cli import ui
from trainctl.cli.mtbf_view import choice_lines, percent, print_table, show_report, steps_words
from trainctl.cli.options import DEFAULT_CONFIG
from trainctl.errors import TrainctlError
from trainctl.job.units import human_seconds

if TYPE_CHECKING:
    from trainctl.job.plan import Plan
    from trainctl.ledger.store import LedgerView

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
    if config is not None or (ledger is None and DEFAULT_CONFIG.exists()):
        from trainctl.host.devices import usable_gpus
        from trainctl.run.planning import build_plan

        # a report is read on login nodes too, which have no GPU
        built = build_plan(config or DEFAULT_CONFIG, [], gpus=usable_gpus(os.environ) or 1)
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
        f"save every {steps_words(chosen.steps)} ({human_seconds(chosen.interval_s)}) · "
        f"{chosen.formula}: {human_seconds(chosen.tau_s)} = {chosen.tau_s / times['step_s']:.1f} steps",
        style="bold",
        markup=False,
    )
    for line in choice_lines(chosen):
        out.print(f"  {line}", markup=False)
    for warning in advice.warnings:
        out.print(f"  warning: {warning}", style="yellow", markup=False)
    out.print()
    rows = [
        (
            f"{choice.steps:,}",
            human_seconds(choice.interval_s),
            percent(choice.save_share),
            human_seconds(choice.loss_s),
            percent(choice.overhead),
            percent(choice.ettr),
            choice.formula,
        )
        for choice in around
    ]
    heads = ("save_steps", "interval", "saves", "lost per failure", "overhead", "ETTR", "formula")
    print_table(heads, rows, left=(6,))


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


def _json(value: Any) -> str:
    return json.dumps(_finite(value), indent=2, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    """JSON has no infinity: unbounded is null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
