"""How this program was called, so that a suggested command can be pasted as it is."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def program() -> str:
    """ "trainctl" where the shell finds this very program by that name, else its path as short as it goes."""
    called = Path(sys.argv[0]).absolute()
    found = shutil.which("trainctl")
    if called.name != "trainctl" or (found is not None and Path(found).absolute() == called):
        return "trainctl"
    return min(os.path.relpath(called), str(called), key=len)


def suggest(command: str, config: str | os.PathLike[str] = "") -> str:
    """ "trainctl COMMAND CONFIG", without the configuration where it is the default one."""
    named = "" if str(config) in ("", "trainctl.toml") else f" {config}"
    return f"{program()} {command}{named}"
