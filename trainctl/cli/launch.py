"""`trainctl launch`: run a job until its last step, through failures that a restart can mend."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainctl.cli import ui


def register(app: typer.Typer) -> None:
    app.command(name="launch")(launch)


def launch(
    config: Annotated[Path, typer.Argument(help="Configuration file.")] = Path("trainctl.toml"),
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a value, like train.lr=3e-4.", show_default=False
        ),
    ] = None,
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
    for line in _next_commands(code, config):
        ui.out().print(line, markup=False)
    raise typer.Exit(code)


def _next_commands(code: int, config: Path) -> list[str]:
    """The last line says what to do next."""
    from trainctl.exitcodes import ExitCode

    name = "" if config == Path("trainctl.toml") else f" {config}"
    if code == ExitCode.DONE:
        return [f"next: trainctl mtbf report{name}  (what it cost, and how often to save)"]
    if code in (ExitCode.INTERRUPTED, ExitCode.REQUEUE):
        return [f"next: trainctl launch{name}  (goes on where it stopped)"]
    if code == ExitCode.PREFLIGHT:
        return []
    return [f"next: mend the cause, then trainctl launch{name}  (goes on from the newest checkpoint)"]
