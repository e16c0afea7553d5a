"""How a run stands, from its directory alone. Reads; changes nothing; needs no running launcher."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainctl.errors import TrainctlError
from trainctl.job.plan import Plan, read_plan
from trainctl.job.protocol import Phase, read_heartbeat
from trainctl.job.rundir import AttemptDir, RunDir, read_json
from trainctl.run.lock import is_held
from trainctl.run.tails import RecordTail, number


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """One rank's last sign of life. age_s: seconds since then, on this host's clock."""

    rank: int
    pid: int
    step: int
    phase: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """One run.

    state: "running", "done", "stopped", "failed", "lost" (its launcher was killed) or "new".
    rate: tokens per second where the trainer says how many, else None. next_save_steps: until the next
    checkpoint. ended: how the last attempt ended, in words.
    """

    job: str
    path: str
    state: str
    attempts: int
    step: int
    steps: int
    durable_step: int
    next_save_steps: int | None
    loss: float | None
    step_s: float | None
    tokens_per_s: float | None
    eval_loss: float | None
    ranks: tuple[RankStatus, ...]
    ended: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def find_runs(runs_dir: Path) -> list[RunDir]:
    """Every run in `runs_dir`, by name. Directories without a run.json are something else."""
    try:
        names = sorted(os.listdir(runs_dir))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TrainctlError("runs-unreadable", f"{runs_dir} cannot be read: {error.strerror}") from None
    runs = (RunDir(runs_dir / name) for name in names if not name.startswith("."))
    return [run for run in runs if run.run_json.exists()]


def read_status(run: RunDir, now: float | None = None) -> RunStatus:
    """How `run` stands now. Files that are missing or torn leave their fields empty."""
    now = time.time() if now is None else now
    plan = _plan(run)
    attempts = run.attempts()
    attempt = attempts[-1] if attempts else None
    ended = read_json(attempt.attempt_json) if attempt is not None else None
    held = is_held(run)
    newest = _newest_records(attempt)
    step_record, evaluation = newest.get("step", {}), newest.get("evaluation", {})
    ranks = _ranks(attempt, now) if attempt is not None else ()
    durable = _durable(run)
    step = max([durable, *(rank.step for rank in ranks)])
    seconds, tokens = number(step_record, "seconds"), number(step_record, "tokens")
    return RunStatus(
        job=run.path.name,
        path=str(run.path),
        state=_state(held, attempt, ended),
        attempts=len(attempts),
        step=step,
        steps=plan.settings.train.steps if plan is not None and plan.bundled else 0,
        durable_step=durable,
        next_save_steps=_next_save(plan, step) if held else None,
        loss=number(step_record, "loss"),
        step_s=seconds,
        tokens_per_s=tokens / seconds if tokens and seconds else None,
        eval_loss=number(evaluation, "loss"),
        ranks=ranks,
        ended=_ended(ended),
    )


def _plan(run: RunDir) -> Plan | None:
    try:
        return read_plan(run.plan_json)
    except TrainctlError:
        return None


def _newest_records(attempt: AttemptDir | None) -> dict[str, dict[str, Any]]:
    if attempt is None:
        return {}
    for rank in attempt.ranks("steps"):
        return RecordTail(attempt.steps(rank)).read()
    return {}


def _ranks(attempt: AttemptDir, now: float) -> tuple[RankStatus, ...]:
    found = []
    for rank in attempt.ranks("heartbeat"):
        beat = read_heartbeat(attempt.heartbeat(rank))
        if beat is not None:
            age_s = max(0.0, now - beat.wall_ns / 1e9)
            found.append(
                RankStatus(
                    rank=rank, pid=beat.pid, step=beat.step, phase=Phase(beat.phase).name.lower(), age_s=age_s
                )
            )
    return tuple(found)


def _durable(run: RunDir) -> int:
    """Newest step with a manifest. Quick: `trainctl status` must not read checkpoints whole."""
    return next((step for step, path in run.checkpoint_dirs() if (path / "MANIFEST.json").exists()), 0)


def _next_save(plan: Plan | None, step: int) -> int | None:
    if plan is None or not plan.bundled:
        return None
    left = plan.save.steps - step % plan.save.steps
    return min(left, max(0, plan.settings.train.steps - step))


def _state(held: bool, attempt: AttemptDir | None, ended: dict[str, Any] | None) -> str:
    if held:
        return "running"
    if attempt is None:
        return "new"
    if ended is None:
        return "lost"
    if ended.get("exit_code") == 0:
        return "done"
    return "stopped" if ended.get("planned") else "failed"


def _ended(ended: dict[str, Any] | None) -> str:
    if ended is None:
        return ""
    cause, detail, rank = ended.get("cause", ""), ended.get("detail", ""), ended.get("rank")
    if not cause:
        return "reached the planned last step"
    where = f" · rank {rank}" if rank is not None else ""
    return f"{cause}{where}{f' · {detail}' if detail else ''}"
