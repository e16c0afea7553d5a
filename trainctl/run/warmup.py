"""The warm-up: a few real steps on the real layout, before the run is opened (preflight item 5).

Runs the bundled trainer's own warm-up under the same torchrun, wrapper and environment as an
attempt, in a directory of its own that is removed afterwards. Leaves no trace in run or ledger.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.host.facts import Warmup
from trainctl.job.plan import Plan
from trainctl.job.protocol import Heartbeat
from trainctl.job.rundir import AttemptDir, RunDir, read_json
from trainctl.run.classify import classify
from trainctl.run.evidence import gather
from trainctl.run.exits import tail_lines
from trainctl.run.lock import unwritable
from trainctl.run.signals import Signals
from trainctl.run.states import State
from trainctl.run.supervise import Supervisor
from trainctl.run.torchrun import rank_environment

if TYPE_CHECKING:
    from trainctl.run.supervise import Outcome

_SHOWN_LINES = 12


class _Silent:
    """Nobody watches a warm-up; only its deadline matters."""

    def tick(self, attempt: AttemptDir, state: State, beats: Mapping[int, Heartbeat]) -> None: ...
    def changed(self, attempt: AttemptDir, state: State, why: str) -> None: ...


def run_warmup(
    plan: Plan, *, signals: Signals | None = None, environ: Mapping[str, str] | None = None
) -> Warmup:
    """Measure step, save and load times and peak memory. Only for the bundled trainer.

    Its directory lies beside the run, on the file system that will take the checkpoints.
    """
    parent = Path(plan.run_dir).parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for stale in parent.glob(f".warmup-{plan.settings.job.name}-????????"):
            shutil.rmtree(stale, ignore_errors=True)  # of a launcher that was killed
        scratch = Path(tempfile.mkdtemp(prefix=f".warmup-{plan.settings.job.name}-", dir=parent))
    except OSError as error:
        raise unwritable(plan.run, error) from None
    try:
        return _measure(plan, scratch, signals or Signals(), environ or os.environ)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _measure(plan: Plan, scratch: Path, signals: Signals, environ: Mapping[str, str]) -> Warmup:
    started = time.monotonic()
    limits = plan.settings.watchdog.model_copy(
        update={"startup_s": plan.settings.preflight.warmup_deadline_s}
    )
    plan = plan.model_copy(
        update={"run_dir": str(scratch), "settings": plan.settings.model_copy(update={"watchdog": limits})}
    )
    attempt = RunDir(scratch).new_attempt()
    plan.write(attempt.plan_json)
    out_dir = scratch / "out"
    out_dir.mkdir()
    run_id = f"{scratch.name.lstrip('.')}"
    supervisor = Supervisor(
        plan,
        attempt,
        run_id,
        (sys.executable, "-u", "-m", "payload.warmup", str(out_dir)),
        rank_environment(plan, attempt, None, run_id, environ),
        signals,
        _Silent(),
    )
    outcome = supervisor.run()
    seconds = time.monotonic() - started
    measured = read_json(out_dir / "warmup.json")
    if measured is None or outcome.agent_code != 0:
        return _failure(attempt, outcome, seconds)
    return Warmup(
        ok=True,
        seconds=seconds,
        step_s=measured["step_s"],
        save_s=measured["save_s"],
        load_s=measured["load_s"],
        checkpoint_bytes=measured["checkpoint_bytes"],
        peak_memory_bytes=tuple(measured["peak_memory_bytes"]),
        tokens_per_step=measured["tokens_per_step"],
    )


def _failure(attempt: AttemptDir, outcome: Outcome, seconds: float) -> Warmup:
    verdict = classify(gather(attempt, outcome, reached_end=None))
    log = attempt.agent_log if verdict.file is None else verdict.file
    said = verdict.cause.says if verdict.cause is not None else "no measurements were written"
    rank = "" if verdict.rank is None else f"rank {verdict.rank}: "
    detail = f" ({verdict.detail})" if verdict.detail else ""
    return Warmup(
        ok=False, error=f"{rank}{said}{detail}", log="\n".join(tail_lines(log, _SHOWN_LINES)), seconds=seconds
    )
