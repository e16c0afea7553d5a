"""`Reporter`: how any trainer joins the loop. The only public API of trainctl.

Standard library only and a no-op when not started by trainctl, so it can stay in the code for good.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from trainctl.job.protocol import ENV_ATTEMPT, ENV_RESUME, ENV_RUN_DIR, HeartbeatWriter, Phase
from trainctl.job.rundir import AttemptDir, RunDir, write_json

_TRACEBACK_LINES = 200
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # made once: called at every step


class Reporter:
    """Progress, records and the first exception of one rank.

        with Reporter() as reporter:
            for step in range(...):
                loss = train_step()
                reporter.step(step, loss=loss, seconds=...)

    Call it from the training loop itself, never from a side thread: a heartbeat must stop when the
    loop does. No call raises: a full disk or a missing directory must not end training.
    """

    def __init__(self) -> None:
        run_dir = os.environ.get(ENV_RUN_DIR)
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.resume_from = os.environ.get(ENV_RESUME) or None
        self.host = socket.gethostname()
        self._run: RunDir | None = None
        self._attempt: AttemptDir | None = None
        self._heartbeat: HeartbeatWriter | None = None
        self._records: IO[bytes] | None = None
        self._reported = False
        if not run_dir:
            return
        self._run = RunDir(Path(run_dir))
        self._attempt = self._run.attempt(int(os.environ[ENV_ATTEMPT]))
        try:
            self._heartbeat = HeartbeatWriter(self._attempt.heartbeat(self.rank), self.rank)
            self._attempt.steps(self.rank).parent.mkdir(parents=True, exist_ok=True)
            self._records = open(self._attempt.steps(self.rank), "ab", buffering=0)
        except OSError as error:
            print(f"trainctl: no records of rank {self.rank}: {error}", file=sys.stderr)

    @property
    def active(self) -> bool:
        """Whether a launcher is listening."""
        return self._attempt is not None

    def phase(self, phase: Phase, step: int | None = None) -> None:
        """Say what the loop does next, so that a hang can be placed."""
        if self._heartbeat is not None:
            self._heartbeat.beat(phase, step)

    def step(self, step: int, **fields: Any) -> None:
        """Record step `step`, the number of completed steps, and beat.

        Usual fields: loss, grad_norm, lr, seconds (the whole step), time (unix seconds of its end, when
        that is not now), tokens, peak_memory_bytes, phases (name -> seconds), sample_ids. Values must be
        plain Python numbers, strings and lists.
        """
        self.record("step", step=step, **fields)
        if self._heartbeat is not None:
            self._heartbeat.beat(Phase.STEP, int(step))

    def record(self, kind: str, **fields: Any) -> None:
        """Append one line: kind "step", "checkpoint", "evaluation", "restore", or your own."""
        if self._records is None:
            return
        line = {"kind": kind, "time": time.time(), "rank": self.rank, "host": self.host, **fields}
        try:
            try:
                text = _encode(line)
            except (TypeError, ValueError):  # a tensor, a NaN: others must still be able to read the line
                text = _encode(_plain(line))
            self._records.write(text.encode() + b"\n")
        except OSError:
            pass  # a full disk must not end training; the heartbeat still shows the step

    def stop_requested(self) -> bool:
        """Whether an operator asked this run to save and stop. One `stat`; agree on it across ranks."""
        try:
            return self._run is not None and self._run.stop_request.exists()
        except OSError:
            return False  # a file system that does not answer well is no request

    def verdict(self, code: int, reason: str, **fields: Any) -> None:
        """Say why the process is about to exit with `code` (16, 17 or 75)."""
        self._report({"code": code, "verdict": reason, **fields})

    def exception(self, error: BaseException) -> None:
        """Persist the first exception of this rank before any clean-up can hide it."""
        if self._reported:
            return
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        summary = "".join(traceback.format_exception_only(type(error), error)).strip()
        if self._heartbeat is not None:
            self._heartbeat.beat(Phase.SHUTDOWN, note=summary)
        self._report(
            {
                "exception": type(error).__qualname__,
                "message": str(error)[:4000],
                "traceback": "".join(lines).splitlines()[-_TRACEBACK_LINES:],
            }
        )

    def close(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None
        if self._heartbeat is not None:
            self._heartbeat.beat(Phase.DONE)
            self._heartbeat.close()
            self._heartbeat = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, SystemExit):
            self.exception(error)
        self.close()

    def _report(self, fields: dict[str, Any]) -> None:
        """The first report stands: what comes later is the clean-up failing."""
        if self._attempt is None or self._reported:
            return
        self._reported = True
        try:
            write_json(
                self._attempt.exit_report(self.rank),
                {"rank": self.rank, "host": self.host, "pid": os.getpid(), "time": time.time()} | fields,
            )
        except OSError:
            pass  # the heartbeat's note still has it


def _plain(value: Any) -> Any:
    """What JSON can say: NaN and Inf as text, anything with a float's value as that, the rest as text."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (str, int)):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)
    return number if math.isfinite(number) else str(number)
