"""Signals to trainctl, as counts. A handler only notes; the loops look and act."""

from __future__ import annotations

import signal
import time

from trainctl.exitcodes import ExitCode


class Signals:
    """Counts SIGINT, SIGTERM and SIGHUP while installed. The loops look at the counts and act."""

    def __init__(self) -> None:
        self.first: str | None = None  # "interrupt" or "terminate", whichever came first
        self.count = 0
        self.interrupts: list[float] = []  # monotonic seconds of every SIGINT
        self._before: dict[int, object] = {}

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                self._before[number] = signal.signal(number, self._note)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def asked(self) -> bool:
        """Whether trainctl was asked to stop."""
        return self.count > 0

    @property
    def exit_code(self) -> ExitCode:
        """How trainctl ends when it was asked to."""
        return ExitCode.INTERRUPTED if self.first == "interrupt" else ExitCode.REQUEUE

    def _note(self, number: int, _frame: object) -> None:
        self.first = self.first or ("interrupt" if number == signal.SIGINT else "terminate")
        self.count += 1
        if number == signal.SIGINT:
            self.interrupts.append(time.monotonic())
