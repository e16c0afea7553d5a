"""How trainctl speaks.

stdout is data, stderr is talk. Lower case, no full stop at the end of a line, `trainctl:` before
lines on stderr. Colour and progress only on a terminal (and never with NO_COLOR); a pipe gets the
same words. Nothing else in the project prints.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainctl.errors import TrainctlError

if TYPE_CHECKING:
    from rich.console import Console


@functools.cache
def out() -> Console:
    """stdout. A terminal gets lines wrapped at words; a pipe must not get them wrapped or cut."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


@functools.cache
def err() -> Console:
    """stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def say(line: str, style: str | None = None) -> None:
    """One line of talk on stderr."""
    err().print(f"trainctl: {line}", style=style, markup=False)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on a terminal what is being waited for; a pipe hears of it when it is over."""
    if not err().is_terminal:
        yield
        return
    with err().status(what):
        yield


def data(text: str) -> None:
    """Plain text on stdout, untouched: JSON, TOML, CSV."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def report(error: TrainctlError) -> None:
    """An expected error: what was found, where, what to do next."""
    say(f"{error.message} [{error.ref}]", style="bold red")
    for line in error.context:
        err().print(f"  {line}", markup=False)
    if error.hint:
        err().print(f"next: {error.hint}", markup=False)
