"""The run directory: every path in it, and the only ways in which it is written.

Standard library only. Must not decide anything: it names, writes and reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STEP_DIR = re.compile(r"step-(\d{8,})")
_RANK_FILE = re.compile(r"rank-(\d+)(?:\.\w+)*")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` whole or not at all, durably: temporary name, fsync, rename, fsync directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of readable JSON."""
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None when it is absent, torn or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole JSON object of a line-per-record file. A torn or foreign line loses that line only."""
    try:
        file = open(path, "rb")
    except OSError:
        return
    with file:
        for line in file:
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """`attempts/0001/`: one torchrun, its logs, heartbeats, records and exits."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def attempt_json(self) -> Path:
        return self.path / "attempt.json"

    @property
    def plan_json(self) -> Path:
        return self.path / "plan.json"

    @property
    def preflight_json(self) -> Path:
        return self.path / "preflight.json"

    @property
    def agent_log(self) -> Path:
        return self.path / "logs" / "agent.log"

    @property
    def agent_json(self) -> Path:
        return self.path / "exits" / "agent.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def stdout(self, rank: int) -> Path:
        return self.path / "logs" / f"rank-{rank}.out"

    def stderr(self, rank: int) -> Path:
        return self.path / "logs" / f"rank-{rank}.err"

    def heartbeat(self, rank: int) -> Path:
        return self.path / "heartbeat" / f"rank-{rank}"

    def steps(self, rank: int) -> Path:
        return self.path / "steps" / f"rank-{rank}.jsonl"

    def exit_status(self, rank: int) -> Path:
        """Written by the rank's own wrapper: pid, start time, exit code or signal."""
        return self.path / "exits" / f"rank-{rank}.json"

    def exit_report(self, rank: int) -> Path:
        """Written by the trainer through `Reporter`: first exception, verdict."""
        return self.path / "exits" / f"rank-{rank}.report.json"

    def ranks(self, kind: str = "exits") -> list[int]:
        """Ranks that left a file in the sub-directory `kind`, ascending."""
        try:
            names = os.listdir(self.path / kind)
        except OSError:
            return []
        found = (_RANK_FILE.fullmatch(name) for name in names)
        return sorted({int(match[1]) for match in found if match})

    def create(self) -> None:
        for name in ("logs", "heartbeat", "steps", "exits"):
            (self.path / name).mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class RunDir:
    """`runs/<job>/`: the whole contract between launcher and trainer."""

    path: Path

    @property
    def plan_json(self) -> Path:
        return self.path / "plan.json"

    @property
    def run_json(self) -> Path:
        """Identity of the run: written once, when its directory is made."""
        return self.path / "run.json"

    @property
    def lock(self) -> Path:
        """Beside the directory, so that it holds while the directory is set aside."""
        return self.path.with_name(f".{self.path.name}.lock")

    @property
    def stop_request(self) -> Path:
        return self.path / "control" / "stop.request"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:08d}"

    def checkpoint_dirs(self) -> list[tuple[int, Path]]:
        """(step, directory) of everything that is named like a checkpoint, newest first, verified or not."""
        return checkpoint_dirs(self.checkpoints)

    def attempt(self, number: int) -> AttemptDir:
        return AttemptDir(self.path / "attempts" / f"{number:04d}")

    def attempts(self) -> list[AttemptDir]:
        """All attempts, oldest first."""
        try:
            names = os.listdir(self.path / "attempts")
        except OSError:
            return []
        return [self.attempt(number) for number in sorted(int(n) for n in names if n.isdigit())]

    def new_attempt(self) -> AttemptDir:
        """Allocate the next attempt by exclusive mkdir, so that two launchers never share one."""
        (self.path / "attempts").mkdir(parents=True, exist_ok=True)
        number = (self.attempts()[-1].number if self.attempts() else 0) + 1
        while True:
            attempt = self.attempt(number)
            try:
                attempt.path.mkdir()
            except FileExistsError:
                number += 1
                continue
            attempt.create()
            return attempt

    def set_aside(self) -> Path:
        """Rename this run to the first free `<job>.old-N` and return that path. Nothing is deleted."""
        number = 1
        while (target := self.path.with_name(f"{self.path.name}.old-{number}")).exists():
            number += 1
        os.rename(self.path, target)
        return target


def checkpoint_dirs(parent: Path) -> list[tuple[int, Path]]:
    """(step, directory) of the sub-directories named `step-N`, newest first."""
    try:
        names = os.listdir(parent)
    except OSError:
        return []
    found = [(int(match[1]), parent / name) for name in names if (match := _STEP_DIR.fullmatch(name))]
    return sorted(found, reverse=True)


def remove_tree(path: Path) -> None:
    """Delete a directory so that a crash half-way can never leave something that looks whole."""
    doomed = path.with_name(f".{path.name}.{os.getpid()}.deleted")
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)
