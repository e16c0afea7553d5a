"""`trainctl status`: how runs stand, once or again and again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainctl.cli import ui

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from trainctl.run.status import RunStatus

_REFRESH_S = 1.0


def register(app: typer.Typer) -> None:
    app.command(name="status")(status)


def status(
    run: Annotated[
        str | None, typer.Argument(help="A run: its name or its directory. Default: all.", show_default=False)
    ] = None,
    runs_dir: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            help="Where runs are. Default: job.runs_dir of trainctl.toml, else ./runs.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every second, until Ctrl-C.")] = False,
) -> None:
    """Show runs: state, step, rate, loss, heartbeats, next checkpoint."""
    if not watch:
        _show(_read(run, runs_dir), as_json, one=run is not None)
        return
    if as_json or not ui.out().is_terminal:
        while True:
            _show(_read(run, runs_dir), as_json, one=run is not None)
            time.sleep(_REFRESH_S)
    from rich.live import Live

    with Live(console=ui.out(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(_render(_read(run, runs_dir), one=run is not None), refresh=True)
            time.sleep(_REFRESH_S)


def _read(run: str | None, runs_dir: Path | None) -> list[RunStatus]:
    from trainctl.errors import TrainctlError
    from trainctl.job.rundir import RunDir
    from trainctl.run.status import find_runs, read_status

    parent = runs_dir or _default_runs_dir()
    if run is None:
        return [read_status(found) for found in find_runs(parent)]
    for path in (Path(run), parent / run):
        if RunDir(path).run_json.exists():
            return [read_status(RunDir(path.resolve()))]
    names = ", ".join(found.path.name for found in find_runs(parent)) or "none"
    raise TrainctlError(
        "no-such-run",
        f"there is no run {run!r} in {parent}",
        context=(f"runs there: {names}",),
        hint="trainctl launch makes one; --runs names another directory",
    )


def _default_runs_dir() -> Path:
    from trainctl.job.config import load

    config = Path("trainctl.toml")
    if config.exists():
        loaded = load(config, {}, ())
        return Path(loaded.base_dir, loaded.settings.job.runs_dir)
    return Path("runs")


def _show(found: list[RunStatus], as_json: bool, *, one: bool) -> None:
    if as_json:
        ui.data(json.dumps([status.to_json() for status in found]))
    elif not found:
        ui.say("no runs here; trainctl launch makes the first one")
    else:
        ui.out().print(_render(found, one=one))


def _render(found: list[RunStatus], *, one: bool) -> Group:
    from rich.console import Group

    parts: list[Table | str] = [_runs_table(found)]
    shown = [status for status in found if status.state == "running"] or (found if one else [])
    for status in shown:
        if status.ranks:
            parts.append(_ranks_table(status))
    for status in found:
        if status.ended and status.state in ("failed", "stopped"):
            parts.append(f"{status.job}: {status.ended}")
        elif status.state == "lost":
            parts.append(
                f"{status.job}: its launcher was killed; launching it again closes the attempt and goes on"
            )
    return Group(*parts)


def _runs_table(found: list[RunStatus]) -> Table:
    from trainctl.job.units import human_count, human_seconds

    table = _table("run", "state", "attempts", "step", "loss", "rate", "s/step", "next save")
    for status in found:
        step = f"{status.step:,}/{status.steps:,}" if status.steps else f"{status.step:,}"
        table.add_row(
            status.job,
            status.state,
            str(status.attempts),
            step,
            "" if status.loss is None else f"{status.loss:.4f}",
            "" if status.tokens_per_s is None else f"{human_count(status.tokens_per_s)} tok/s",
            "" if status.step_s is None else human_seconds(status.step_s),
            "" if status.next_save_steps is None else f"in {status.next_save_steps:,} steps",
        )
    return table


def _ranks_table(status: RunStatus) -> Table:

    table = _table("rank", "pid", "step", "phase", "last heartbeat")
    for rank in status.ranks:
        table.add_row(str(rank.rank), str(rank.pid), f"{rank.step:,}", rank.phase, _age(rank.age_s))
    return table


def _age(seconds: float) -> str:
    from trainctl.job.units import human_seconds

    return f"{seconds:.1f} s ago" if seconds < 10 else f"{human_seconds(seconds)} ago"


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
