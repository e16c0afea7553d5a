"""Commands and options are API: scripts call them. A change here must be meant.

Regenerate after a wanted change, and note it in CHANGELOG.md:
    REGENERATE=1 .venv/bin/python -m pytest tests/house/test_cli_surface.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

GOLDEN = Path(__file__).with_name("cli_surface.txt")


def surface(command: Any, name: str) -> Iterator[str]:
    """One line a command: its arguments, then its options by name."""
    parameters = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [one.name.upper() for one in parameters if one.param_type_name == "argument"]
    options = [
        "/".join([*one.opts, *one.secondary_opts]) for one in parameters if one.param_type_name == "option"
    ]
    yield " ".join([name, *arguments, *sorted(options)])
    for child in sorted(getattr(command, "commands", {})):
        yield from surface(command.commands[child], f"{name} {child}")


def test_commands_and_options_are_as_recorded() -> None:
    from trainctl.cli.app import app

    lines = list(surface(get_command(app), "trainctl"))
    if os.environ.get("REGENERATE"):
        GOLDEN.write_text("\n".join(lines) + "\n")
        pytest.fail(f"wrote {GOLDEN.name}, look at the difference and run again")
    assert lines == GOLDEN.read_text().splitlines()
