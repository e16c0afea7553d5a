"""How trainctl speaks.

stdout is data, stderr is talk. Lower case, no full stop at the end of a line, `trainctl:` before
lines on stderr. Colour and progress only on a terminal (and never with NO_COLOR); a pipe gets the
same words. Nothing else in the project prints.
"""

from __future__ import annotations

import functools
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trainctl.errors import TrainctlError

if TYPE_CHECKING:
    from rich.console import Console


@functools.cache
def out() -> Console:
    """stdout. A terminal gets lines wrapped at words; a pipe must not get them wrapped or cut."""
    return _console(stderr=False, soft_wrap=not sys.stdout.isatty())


@functools.cache
def err() -> Console:
    """stderr."""
    return _console(stderr=True, soft_wrap=not sys.stderr.isatty())


def _console(*, stderr: bool, soft_wrap: bool) -> Console:
    from rich.console import Console

    class Honest(Console):
        def on_broken_pipe(self) -> None:
            """rich would end the program here; whether a reader that left matters is the caller's."""
            raise BrokenPipeError

    return Honest(stderr=stderr, highlight=False, soft_wrap=soft_wrap)


def deafen() -> None:
    """The reader of stdout left, or the terminal is gone: what is still said goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def say(line: str, style: str | None = None) -> None:
    """One line of talk on stderr."""
    err().print(f"trainctl: {line}", style=style, markup=False)


def wrapped(text: str, indent: int) -> str:
    """For a terminal: broken at words, with what follows the first line set in under it. A pipe gets
    the line as it is."""
    width = out().width
    if not out().is_terminal or len(text) <= width or width < 2 * indent:
        return text
    return textwrap.fill(
        text,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )


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
