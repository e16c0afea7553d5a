"""`trainctl preflight`: everything that can be known before a launch, in one place."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainctl.cli import ui
from trainctl.cli.options import DEFAULT_CONFIG, ConfigFile, Overrides
from trainctl.errors import TrainctlError
from trainctl.exitcodes import ExitCode

if TYPE_CHECKING:
    from trainctl.host.facts import NodeFacts
    from trainctl.run.preflight_report import Line, Report

_STYLES = {"fail": "bold red", "unknown": "magenta", "warn": "yellow", "pass": "green", "skip": "dim"}


class Format(str, Enum):
    text = "text"
    json = "json"
    short = "short"
    junit = "junit"


CHECKING = "preflight: reading this machine, then a few steps on the real layout"


def register(app: typer.Typer) -> None:
    app.command(name="preflight")(preflight)


def preflight(
    config: ConfigFile = DEFAULT_CONFIG,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the warm-up step.")] = False,
    only: Annotated[
        str, typer.Option(metavar="LIST", help="Judge these items, names or codes only, like 1,2,TC603.")
    ] = "",
    output: Annotated[Format, typer.Option("--format", help="How to print the report.")] = Format.text,
    facts: Annotated[
        list[Path] | None,
        typer.Option("--facts", metavar="FILE", help="Judge recorded facts, not this machine. Repeatable."),
    ] = None,
    collect_to: Annotated[
        Path | None, typer.Option("--collect", metavar="FILE", help="Only write the facts of this machine.")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List every item and code.")] = False,
    explain: Annotated[str, typer.Option(metavar="CODE", help="Say what a code means and what to do.")] = "",
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show facts and codes of all items.")
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Check machine, environment and configuration. Exit code 0 ready, 3 not ready."""
    if list_all:
        return _list()
    if explain:
        return _explain(explain)
    from trainctl.run.planning import build_plan
    from trainctl.run.preflight import collect, judge, prepare

    selected = [word.strip() for word in only.split(",") if word.strip()]
    changes = list(overrides or [])
    if collect_to is not None:
        node = collect(build_plan(config, changes))
        collect_to.write_text(json.dumps([node.model_dump(mode="json")], indent=2) + "\n")
        return ui.say(f"facts of {node.host} are in {collect_to}")
    if facts:
        nodes = [node for path in facts for node in read_facts(path)]
        devices = [len(node.gpus.value.devices) for node in nodes if node.gpus.value is not None]
        # what was recorded is judged, not the machine that judges it
        report = judge(build_plan(config, changes, gpus=min(devices, default=0)), nodes, selected)
    else:
        from trainctl.run.warmup import run_warmup

        with ui.waiting(CHECKING):
            _, report = prepare(
                lambda warmup: build_plan(config, changes, warmup=warmup),
                run_warmup,
                quick=quick,
                only=selected,
            )
    show(report, output, verbose=verbose)
    raise typer.Exit(report.exit_code)


def show(report: Report, output: Format = Format.text, *, verbose: bool = False) -> None:
    from trainctl.run import preflight_report as render

    if output is Format.json:
        content = report.to_json()
        if not verbose:
            content.pop("facts")
        ui.data(json.dumps(content, indent=2))
    elif output is Format.junit:
        ui.data(render.junit(report))
    elif output is Format.short:
        _print(render.short_text(report))
    else:
        _print(render.full_text(report, verbose=verbose))


def show_before_launch(report: Report, *, verbose: bool = False) -> None:
    """For `launch`: one line, and the items that are not fine; all items with `verbose`."""
    from trainctl.job.units import human_seconds
    from trainctl.run import preflight_report as render

    if verbose:
        return _print(render.full_text(report, going_on=True))
    said = f"{render.verdict(report)}, {human_seconds(report.seconds)}"
    ui.out().print(f"{'preflight':<11} {said}", markup=False)
    _print(render.problems(report))
    if not report.ok:
        ui.out().print(f"next: {render.next_step(report)}", markup=False)
    return None


def read_facts(path: Path) -> list[NodeFacts]:
    """Recorded facts: one node, a list of nodes, or a report with facts in it.

    Raises TrainctlError when the file holds none of these.
    """
    from pydantic import ValidationError

    from trainctl.host.facts import FACTS_VERSION, NodeFacts

    def refuse(reason: str) -> TrainctlError:
        hint = "record facts with trainctl preflight --collect FILE"
        return TrainctlError("facts-unreadable", f"{path} holds no facts: {reason}", hint=hint)

    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise refuse(getattr(error, "strerror", None) or "it is not JSON") from None
    if isinstance(content, dict):
        content = content.get("facts", [content])
    try:
        nodes = [NodeFacts.model_validate(node) for node in content]
    except (ValidationError, TypeError) as error:
        raise refuse(str(error).splitlines()[0]) from None
    newer = [node for node in nodes if node.version > FACTS_VERSION]
    if newer or not nodes:
        raise refuse(
            f"version {newer[0].version}, this trainctl reads {FACTS_VERSION}" if newer else "it is empty"
        )
    return nodes


def _print(lines: Iterable[Line]) -> None:
    from rich.text import Text

    from trainctl.run.preflight_report import DETAIL_COLUMN, STATUS_COLUMN

    for line in lines:
        detail = line.status is not None or line.text.startswith(" " * DETAIL_COLUMN)
        text = Text(ui.wrapped(line.text, DETAIL_COLUMN) if detail else line.text)
        if line.status is not None:
            word = line.status.value
            text.stylize(_STYLES[word], STATUS_COLUMN, STATUS_COLUMN + len(word))
        ui.out().print(text)


def _list() -> None:
    from checks.registry import CHECKS, heading, severity

    for check in CHECKS:
        ui.data(f"{heading(check)}: {check.title}")
        for code in check.codes:
            ui.data(f"  {code.code:<7} {severity(code):<8} {code.meaning}")


def _explain(wanted: str) -> None:
    from checks.registry import CODES, NAMES, severity

    code = CODES.get(wanted.upper())
    if code is None:
        raise TrainctlError(
            "no-such-code",
            f"{wanted} is not a code of preflight",
            hint="trainctl preflight --list shows all",
            exit_code=ExitCode.USAGE,
        )
    ui.data(f"{code.code} ({NAMES[code.item]}, {severity(code)})")
    ui.data(code.meaning)
    if code.advice:
        ui.data(f"do: {code.advice}")
