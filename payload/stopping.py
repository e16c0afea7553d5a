"""How a run of the trainer is asked to stop, and how a process leaves after trouble."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from trainctl.errors import TrainctlError
from trainctl.exitcodes import PayloadExit

_ASK_EVERY_S = 0.5


class StopRequest:
    """SIGTERM, SIGINT or an operator's request. Only ever a flag: the loop agrees on it with the
    other ranks and acts, so a signal can never tear a save, and neither can a second one."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        """asked: looks for an operator's request; called twice a second at most."""
        self._asked = asked
        self._flag = False
        self._next_look_s = 0.0

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def wanted(self) -> bool:
        if not self._flag and time.monotonic() >= self._next_look_s:
            if self._asked():  # not assigned: a signal may set the flag while it looks
                self._flag = True
            self._next_look_s = time.monotonic() + _ASK_EVERY_S
        return self._flag

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._flag = True


def leave(code: int) -> NoReturn:
    """Exit in order with `code`. The ending is decided: signals that still come must not change it,
    and the interpreter would restore their deadly defaults while it shuts down."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def leave_at_once(error: BaseException) -> NoReturn:
    """Say what happened and go, without the clean-up that a stuck communicator would block for ever."""
    try:
        if isinstance(error, TrainctlError):
            lines = [f"trainctl: {error.message}", *(f"  {line}" for line in error.context)]
            print(*lines, *([f"next: {error.hint}"] if error.hint else []), sep="\n", file=sys.stderr)
        else:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(PayloadExit.FAILED)  # also when the disk of the logs is full
