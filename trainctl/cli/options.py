"""Arguments that several commands share, spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(help="Configuration file.")]
DEFAULT_CONFIG = Path("trainctl.toml")
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a value, like train.lr=3e-4.", show_default=False
    ),
]
