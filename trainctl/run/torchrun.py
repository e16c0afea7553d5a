"""The command line and environment of one attempt: what is started, never what happens to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from trainctl.job.plan import Plan
from trainctl.job.protocol import ENV_ATTEMPT, ENV_PLAN, ENV_RESUME, ENV_RUN_DIR, ENV_RUN_ID
from trainctl.job.rundir import AttemptDir
from trainctl.run.agent import AgentSpec

PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def rank_command(plan: Plan, attempt: AttemptDir) -> tuple[str, ...]:
    """What every rank runs."""
    job = plan.settings.job
    if job.script is None:
        return (sys.executable, "-u", "-m", "payload.train")
    script = plan.resolve(job.script)
    fill = {
        "{save_steps}": str(plan.save.steps),
        "{run_dir}": plan.run_dir,
        "{attempt}": str(attempt.number),
    }
    arguments = []
    for argument in job.args:
        for name, value in fill.items():
            argument = argument.replace(name, value)
        arguments.append(argument)
    interpreter = (sys.executable, "-u") if script.suffix == ".py" else ()
    return (*interpreter, str(script), *arguments)


def rank_environment(
    plan: Plan,
    attempt: AttemptDir,
    resume: Path | None,
    run_id: str,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """What every rank sees before torchrun adds its own variables. [env] wins over what is inherited."""
    defaults = {
        "OMP_NUM_THREADS": str(plan.threads),
        # torchrun would set 1, which ends a rank before its flight recorder is on disk
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a segfault leaves its Python stack in the rank's log
    }
    contract = {
        ENV_RUN_DIR: plan.run_dir,
        ENV_RUN_ID: run_id,
        ENV_ATTEMPT: str(attempt.number),
        ENV_RESUME: str(resume or ""),
        ENV_PLAN: str(attempt.plan_json),
    }
    if plan.bundled:
        # `payload` is a common name: the working directory must not be able to shadow it
        inherited = environ.get("PYTHONPATH")
        contract["PYTHONPATH"] = f"{PACKAGE_ROOT}:{inherited}" if inherited else str(PACKAGE_ROOT)
        contract["PYTHONSAFEPATH"] = "1"
    return {**defaults, **environ, **plan.settings.env, **contract}


def spawn_agent(
    plan: Plan,
    attempt: AttemptDir,
    run_id: str,
    command: tuple[str, ...],
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Start torchrun in a session of its own, so that Ctrl-C at the terminal reaches only trainctl.

    Must be called from the main thread: the kernel ties its death signal to the creating thread.
    """
    spec = AgentSpec(
        run_id=f"{run_id}-{attempt.number}",
        attempt_dir=str(attempt.path),
        working_dir=str(attempt.path if plan.bundled else Path.cwd()),
        supervisor_pid=os.getpid(),
        nnodes=plan.layout.nodes,
        nproc_per_node=plan.layout.procs_per_node,
        rendezvous_port=plan.settings.cluster.rendezvous_port,
        grace_s=max(1, round(plan.grace_s)),
        command=command,
    )
    path = attempt.path / "agent.json"
    spec.write(path)
    # not `-m`: that would let a folder named `trainctl` in the working directory shadow this package
    path_entry = f"sys.path[0] = {str(PACKAGE_ROOT)!r}"
    start = f"import sys; {path_entry}; from trainctl.run.agent import main; sys.exit(main())"
    with open(attempt.agent_log, "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", start, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
