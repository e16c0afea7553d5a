"""Tiny jobs and real ranks: processes started as torchrun would, with a deadline."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainctl.job.layout import resolve_layout
from trainctl.job.plan import Plan, SaveInterval, digest, identity_values, resolve_global_batch
from trainctl.job.protocol import ENV_ATTEMPT, ENV_PLAN, ENV_RESUME, ENV_RUN_DIR
from trainctl.job.rundir import read_json_lines
from trainctl.job.settings import Settings

DEADLINE_S = 90.0
TINY = {
    "job": {"name": "tiny"},
    "model": {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "seq_len": 16},
    "data": {"path": "text.txt", "cache_dir": "cache", "eval_fraction": 0.1},
    "train": {"steps": 6, "micro_batch": 2, "warmup_steps": 2, "eval_batches": 2, "log_interval": 1},
}


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, one section deep."""
    return {key: {**base.get(key, {}), **over.get(key, {})} for key in {**base, **over}}


@pytest.fixture
def make_plan(tmp_path: Path) -> Callable[..., Plan]:
    """A plan for a tiny model in `tmp_path`; sections of the configuration as keywords."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} times {n} is {n * n}, and so on. " for n in range(400)))

    def make(world: int = 1, *, save_steps: int = 1000, run: str = "run", **sections: Any) -> Plan:
        settings = Settings.model_validate(merged(TINY, sections))
        layout = resolve_layout(settings.parallel, 1, world)
        return Plan(
            settings=settings,
            sources={},
            config_path="",
            base_dir=str(tmp_path),
            run_dir=str(tmp_path / run),
            ledger_dir=str(tmp_path / "ledger"),
            identity_digest=digest(identity_values(settings, resolve_global_batch(settings, layout))),
            config_digest=digest(settings.model_dump(mode="json")),
            layout=layout,
            device="cpu",
            threads=1,
            grace_s=10.0,
            save=SaveInterval(
                steps=save_steps, basis="config", mtbf_s=3600.0, mtbf_basis="test", mtbf_low_s=0.0,
                mtbf_high_s=0.0, failures=0, cost_s=1.0, cost_basis="test", step_s=1.0, step_basis="test",
                best_steps=save_steps, overhead=0.0, best_overhead=0.0,
            ),
        )  # fmt: skip

    return make


class Ranks:
    """Processes of one attempt: `exits` waits for all of them."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes
        self.outputs: list[tuple[str, str]] = []

    def exits(self) -> list[int]:
        deadline = time.monotonic() + DEADLINE_S
        for process in self.processes:
            self.outputs.append(process.communicate(timeout=max(0.1, deadline - time.monotonic())))
        return [process.returncode for process in self.processes]

    def signal(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def start_ranks(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Start every rank of a plan; whatever still lives at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(
        plan: Plan,
        arguments: list[str] | None = None,
        *,
        attempt: int = 1,
        resume: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> Ranks:
        where = plan.run.attempt(attempt)
        where.create()
        plan.write(where.plan_json)
        port = free_port()
        processes = []
        for rank in range(plan.layout.world):
            variables = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(plan.layout.world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "PYTHONSAFEPATH": "1",
                ENV_RUN_DIR: plan.run_dir,
                ENV_ATTEMPT: str(attempt),
                ENV_PLAN: str(where.plan_json),
                ENV_RESUME: str(resume or ""),
                **(env or {}),
            }
            processes.append(
                subprocess.Popen(
                    [sys.executable, *(arguments or ["-m", "payload.train"])],
                    env=variables,
                    cwd=tmp_path,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
        started.extend(processes)
        return Ranks(processes)

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture
def faulty() -> Callable[..., list[str]]:
    """Arguments that start the trainer with one fault, for `start_ranks`."""

    def arguments(fault: str, *, rank: int, step: int, snapshot: Path | None = None) -> list[str]:
        script = Path(__file__).with_name("faulty_train.py")
        where = None if snapshot is None else str(snapshot)
        return [str(script), json.dumps({"fault": fault, "rank": rank, "step": step, "snapshot": where})]

    return arguments


@pytest.fixture
def one_rank() -> Iterator[Any]:
    """This process as the only rank of a world of one."""
    import torch
    import torch.distributed as dist

    from payload.ranks import Ranks

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.new_group(backend="gloo")
    yield Ranks(rank=0, local_rank=0, size=1, device=torch.device("cpu"), checkpoint_group=group)
    dist.destroy_process_group()


@pytest.fixture
def tensors() -> Callable[[Path], dict[str, Any]]:
    """All tensors of a checkpoint directory, by name."""
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    def read(directory: Path) -> dict[str, Any]:
        reader = FileSystemReader(directory)
        entries = reader.read_metadata().state_dict_metadata
        state = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()
        }
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # "uninitialized": as meant
            load(state, storage_reader=reader, no_dist=True)
        return state

    return read


@pytest.fixture
def records() -> Callable[..., list[dict[str, Any]]]:
    """Records of one kind that a rank has written in an attempt."""

    def read(plan: Plan, kind: str, *, rank: int = 0, attempt: int = 1) -> list[dict[str, Any]]:
        lines = read_json_lines(plan.run.attempt(attempt).steps(rank))
        return [line for line in lines if line["kind"] == kind]

    return read


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Poll until something is true, with a deadline."""

    def wait(condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, "deadline passed"
            time.sleep(0.02)
        return value

    return wait
