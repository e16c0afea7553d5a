"""torchrun for one attempt, in a process of its own: `python -m trainctl.run.agent SPEC.json`.

Uses torch's elastic agent through its public launch API, with zero restarts inside, and writes
what it learned as JSON, because its exit code says nothing. Must not decide anything.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from trainctl.host.processes import die_with_parent
from trainctl.job.rundir import write_json

EXIT_FAILED = 1
EXIT_ERROR = 70  # the agent itself, not a rank (EX_SOFTWARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """What the supervisor asks of the agent. rendezvous_port 0 takes a free one."""

    run_id: str
    attempt_dir: str
    working_dir: str  # where the ranks run
    supervisor_pid: int
    nnodes: int
    nproc_per_node: int
    rendezvous_port: int
    grace_s: int
    command: tuple[str, ...]

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> AgentSpec:
        raw = json.loads(path.read_bytes())
        return cls(**{**raw, "command": tuple(raw["command"])})


def main() -> int:
    spec = AgentSpec.read(Path(sys.argv[1]))
    if not die_with_parent(signal.SIGTERM, spec.supervisor_pid):
        return EXIT_ERROR
    os.environ["TRAINCTL_AGENT_PID"] = str(os.getpid())
    # A restarted rank could read the previous attempt's address from the shared store (torch 2.13).
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=spec.nnodes,
        max_nodes=spec.nnodes,
        nproc_per_node=spec.nproc_per_node,
        run_id=spec.run_id,
        role="trainer",
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{spec.rendezvous_port}",
        rdzv_configs={"timeout": 300},
        max_restarts=0,
        monitor_interval=0.1,
        local_addr="localhost",
        shutdown_timeout=spec.grace_s,
    )
    wrapper = str(Path(__file__).with_name("rank.py"))
    entrypoint = (sys.executable, "-I", "-S", wrapper, spec.attempt_dir, spec.working_dir, *spec.command)
    report: dict[str, object]
    try:
        elastic_launch(config, entrypoint[0])(*entrypoint[1:])
        report, code = {"outcome": "done"}, 0
    except ChildFailedError as error:
        failures = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
        report, code = {"outcome": "failed", "failures": failures}, EXIT_FAILED
    except SignalException as error:
        report, code = {"outcome": "signal", "signal": int(error.sigval)}, 128 + int(error.sigval)
    except Exception as error:
        report, code = {"outcome": "error", "error": f"{type(error).__name__}: {error}"}, EXIT_ERROR
        import traceback

        traceback.print_exc()
    try:
        write_json(Path(spec.attempt_dir, "exits", "agent.json"), report)
    except OSError as error:
        print(f"trainctl: agent report not written: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
