"""`trainctl launch`: run a job until its last step, through failures that a restart can mend."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli import ui
from trainctl.cli.command import suggest
from trainctl.cli.options import DEFAULT_CONFIG, ConfigFile, Overrides


def register(app: typer.Typer) -> None:
    app.command(name="launch")(launch)


def launch(
    config: ConfigFile = DEFAULT_CONFIG,
    overrides: Overrides = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the run before is kept beside it.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show every preflight item.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Preflight without the warm-up step.")] = False,
) -> None:
    """Preflight, torchrun, restarts, receipts. The same command again resumes the run."""
    from trainctl.cli.launch_view import LaunchView
    from trainctl.run.launch import Options, launch

    view = LaunchView(verbose=verbose)
    try:
        code = launch(config, list(overrides or []), Options(fresh=fresh, quick=quick), view)
    finally:
        view.close()
    for line in _next_commands(code, config, list(overrides or [])):
        ui.out().print(line, markup=False)
    raise typer.Exit(code)


def _next_commands(code: int, config: Path, overrides: list[str]) -> list[str]:
    """The last lines say what to do next, as commands to paste."""
    from trainctl.exitcodes import ExitCode

    changes = "".join(f" --set {shlex.quote(override)}" for override in overrides)
    again = suggest("launch", config) + changes
    if code == ExitCode.DONE:
        return [
            f"next: {suggest('mtbf report', config)}   what it cost, and how often to save",
            f"      {suggest('plan', config)}{changes}   what a next launch would do",
        ]
    if code in (ExitCode.INTERRUPTED, ExitCode.REQUEUE):
        return [f"next: {again}   goes on where it stopped"]
    if code == ExitCode.PREFLIGHT:
        return []
    return [f"next: mend the cause, then {again}   goes on from the newest checkpoint"]
