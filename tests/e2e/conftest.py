"""Real launches of real trainers in temporary directories, and the proof that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainctl.host import processes
from trainctl.job.protocol import ENV_RUN_DIR, read_heartbeat
from trainctl.job.rundir import RunDir, read_json_lines
from trainctl.ledger.store import Attempt, read_ledger

LAUNCH_S = 120.0
GPT = """
[job]
name = "gpt"

[cluster]
procs_per_node = {ranks}
device = "cpu"

[model]
layers = 1
hidden = 32
heads = 2
seq_len = 32

[data]
path = "{data}"
cache_dir = "{cache}"

[train]
steps = {steps}
micro_batch = 2
warmup_steps = 2
eval_batches = 1
threads = 1

[checkpoint]
save_steps = {save_steps}

[restart]
grace_s = 10
"""
SCRIPT = """
[job]
name = "script"
script = "{script}"
args = {args}

[cluster]
procs_per_node = {ranks}
device = "cpu"

[restart]
grace_s = 10
max_restarts = 1
"""


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """Poll until `condition` holds; fail naming what was waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    pytest.fail(f"no {what} within {timeout_s:g} s")


@dataclass
class Launch:
    """One `trainctl launch` that runs in the background."""

    process: subprocess.Popen[str]
    log: Path

    def wait(self, timeout_s: float = LAUNCH_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"trainctl launch did not end within {timeout_s:g} s:\n{self.output}")

    @property
    def output(self) -> str:
        return self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@dataclass
class Job:
    """A configuration in a directory of its own, and what its runs leave there."""

    directory: Path
    name: str
    launches: list[Launch] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.directory / "trainctl.toml"

    @property
    def run(self) -> RunDir:
        return RunDir(self.directory / "runs" / self.name)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        view = read_ledger(self.directory / "runs" / "ledger")
        assert not view.problems
        return view.attempts

    def start(self, *arguments: str, environ: dict[str, str] | None = None) -> Launch:
        log = self.directory / f"launch-{len(self.launches)}.log"
        with open(log, "w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "trainctl", "launch", str(self.config), "--quick", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **(environ or {})},
            )
        launch = Launch(process, log)
        self.launches.append(launch)
        return launch

    def launch(self, *arguments: str, timeout_s: float = LAUNCH_S) -> tuple[int, str]:
        """Run to the end; (exit code, what was printed)."""
        launch = self.start(*arguments)
        return launch.wait(timeout_s), launch.output

    def step(self, rank: int = 0) -> int:
        """Last completed step of the newest attempt."""
        attempts = self.run.attempts()
        beat = read_heartbeat(attempts[-1].heartbeat(rank)) if attempts else None
        return -1 if beat is None else beat.step

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """While the newest launch lives; what it said is shown when it ended before."""
        launch = self.launches[-1]
        wait_until(lambda: condition() or launch.process.poll() is not None, what)
        assert condition(), f"the launch ended before {what}:\n{launch.output}"

    def wait_for_step(self, step: int, rank: int = 0) -> None:
        self.wait_for(lambda: self.step(rank) >= step, f"step {step} of rank {rank}")

    def wait_for_attempt(self, number: int) -> None:
        self.wait_for(lambda: len(self.attempts) >= number, f"attempt {number}")

    def wait_for_checkpoint(self, step: int) -> None:
        path = self.run.checkpoint(step) / "MANIFEST.json"
        self.wait_for(path.exists, f"checkpoint of step {step}")

    def pid(self, rank: int) -> int:
        """Process id of the rank itself, not of its wrapper."""
        record = json.loads(self.run.attempts()[-1].exit_status(rank).read_bytes())
        return int(record["pid"])

    def agent_pid(self) -> int:
        value = processes.environment_value(self.pid(0), "TRAINCTL_AGENT_PID")
        assert value is not None
        return int(value)

    def losses(self, attempt: int, rank: int = 0) -> dict[int, float]:
        lines = read_json_lines(self.run.attempt(attempt).steps(rank))
        return {line["step"]: line["loss"] for line in lines if line["kind"] == "step"}

    def leftovers(self) -> list[processes.Stat]:
        """Live processes of any run in this directory."""
        return [
            stat
            for stat in processes.find_by_environment(ENV_RUN_DIR)
            if (processes.environment_value(stat.process.pid, ENV_RUN_DIR) or "").startswith(
                str(self.directory)
            )
        ]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 200 kB of text: the sources of a few standard modules."""
    import argparse
    import tarfile

    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(b"".join(Path(module.__file__).read_bytes() for module in (argparse, tarfile)))
    return path


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Job]]:
    """Jobs of one test. Afterwards no process of theirs may be left, whatever the test did."""
    made: list[Job] = []
    yield made
    for job in made:
        for launch in job.launches:
            if launch.process.poll() is None:
                launch.process.kill()
                launch.process.wait(10)
        left = job.leftovers()
        deadline = time.monotonic() + 20
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = job.leftovers()
        for stat in left:
            processes.send_signal(stat.process, signal.SIGKILL)
        assert not left, f"processes of the run were left: {left}"


@pytest.fixture
def gpt(tmp_path: Path, text: Path, jobs: list[Job]) -> Callable[..., Job]:
    """Makes a job of the bundled trainer: milliseconds a step."""

    def make(
        steps: int = 60, save_steps: int = 10, ranks: int = 2, directory: Path | None = None, extra: str = ""
    ) -> Job:
        place = directory or tmp_path / f"job{len(jobs)}"
        place.mkdir(exist_ok=True)
        job = Job(place, "gpt")
        config = GPT.format(
            ranks=ranks, data=text, cache=text.parent / "cache", steps=steps, save_steps=save_steps
        )
        job.config.write_text(config + extra)
        jobs.append(job)
        return job

    return make


@pytest.fixture
def script(tmp_path: Path, jobs: list[Job]) -> Callable[..., Job]:
    """Makes a job of another trainer: `source` is its program, written against `Reporter`."""

    def make(source: str, *arguments: str, ranks: int = 2, extra: str = "") -> Job:
        place = tmp_path / f"job{len(jobs)}"
        place.mkdir()
        (place / "trainer.py").write_text(source)
        job = Job(place, "script")
        config = SCRIPT.format(script="trainer.py", args=json.dumps(list(arguments)), ranks=ranks)
        job.config.write_text(config + extra)
        jobs.append(job)
        return job

    return make
