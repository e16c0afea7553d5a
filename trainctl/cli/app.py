"""The `trainctl` command: collects the command groups and maps every ending to an exit code.

Three endings: an expected error (message and hint), interrupted (typer ends with 130), a bug (short
line and a report file). Imports nothing heavy: `--help` must answer at once.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback

import typer

from trainctl.cli import init, launch, mtbf, plan, preflight, status, ui
from trainctl.errors import TrainctlError
from trainctl.exitcodes import ExitCode

app = typer.Typer(
    name="trainctl",
    help="Launch training jobs that explain themselves: preflight, torchrun, restarts, receipts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for group in (init, plan, preflight, launch, status, mtbf):
    group.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        from trainctl import __version__

        ui.data(f"trainctl {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except TrainctlError as error:
        ui.report(error)
        sys.exit(error.exit_code)
    except Exception as error:
        ui.say(f"this is a bug in trainctl: {type(error).__name__}: {error}", style="bold red")
        ui.say(f"a report to send along is in {_bug_report(error)}")
        sys.exit(ExitCode.FAILED)


def _bug_report(error: Exception) -> str:
    from trainctl import __version__

    text = (
        f"trainctl {__version__} · python {platform.python_version()} · {platform.platform()}\n"
        f"command: {' '.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}"
    )
    try:
        descriptor, name = tempfile.mkstemp(prefix="trainctl-bug-", suffix=".txt")
        with open(descriptor, "w") as file:
            file.write(text)
    except OSError as trouble:
        return f"nowhere, because no file could be written ({trouble.strerror}):\n{text}"
    return name
