"""Closing the books of an attempt: its files become one ledger entry.

Used by the supervisor at the end of an attempt, and by the next launch for an attempt whose own
supervisor died. Both go the same way, so both come to the same figures.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from trainctl.job.manifest import newest_verified
from trainctl.job.plan import Plan
from trainctl.job.protocol import read_heartbeat
from trainctl.job.rundir import AttemptDir, read_json
from trainctl.ledger.goodput import Timeline, split
from trainctl.ledger.store import Attempt, AttemptEnd, AttemptStart, append, read_ledger
from trainctl.run.causes import CAUSES, Restart
from trainctl.run.classify import Ending, Verdict, classify
from trainctl.run.exits import read_ends
from trainctl.run.records import Records, read_records
from trainctl.run.supervise import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """Moments of one attempt in unix seconds. begin: the end of the attempt before, or the launch.

    waited_s: time before the first step in which trainctl waited on purpose (backoff).
    """

    begin: float
    waited_s: float
    failed: float | None
    noticed: float | None
    end: float


def durable_step(plan: Plan) -> int | None:
    """Step of the newest checkpoint whose files are complete, 0 when there is none.

    None for a trainer that keeps its checkpoints elsewhere. Compares sizes, not digests: a resume
    compares those as well.
    """
    if not plan.bundled:
        return None
    try:
        found, _ = newest_verified(plan.run.checkpoints, digests=False)
    except OSError:
        return None  # not known: the file system does not answer
    return 0 if found is None else found[1].step


def account(
    start: AttemptStart,
    attempt: AttemptDir,
    stamps: Stamps,
    verdict: Verdict,
    exit_code: int,
    durable: int | None,
    *,
    reconstructed: bool = False,
) -> AttemptEnd:
    """The ledger entry of an attempt that is over."""
    records = read_records(attempt)
    cause = verdict.cause
    planned = cause is None or cause.restart is Restart.PLANNED
    last_step = max([start.resumed_step, *(step for step, _, _ in records.steps)])
    timeline = Timeline(
        begin=stamps.begin,
        waits_s=stamps.waited_s,
        first_step_start=records.first_step_start,
        failed=stamps.failed,
        noticed=stamps.noticed,
        end=stamps.end,
        steps=records.steps,
        saves=records.saves,
        evaluations=records.evaluations,
        durable_step=durable,
        finished=cause is None,
    )
    return AttemptEnd(
        run_id=start.run_id,
        job=start.job,
        attempt=start.attempt,
        time=stamps.end,
        exit_code=exit_code,
        cause="" if cause is None else cause.name,
        detail=verdict.detail,
        rank=verdict.rank,
        fingerprint=verdict.fingerprint,
        planned=planned,
        first_step=records.steps[0][0] if records.steps else None,
        last_step=last_step,
        durable_step=durable,
        first_step_at=records.first_step_start,
        failed_at=stamps.failed,
        noticed_at=stamps.noticed,
        gone_at=stamps.end,
        step_s=records.step_s,
        save_s=records.save_s,
        saves=len(records.saves),
        buckets={bucket.value: seconds for bucket, seconds in split(timeline).items()},
        reconstructed=reconstructed,
    )


def stamps_of(begin: float, waited_s: float, outcome: Outcome, verdict: Verdict) -> Stamps:
    """Stamps of an attempt that this process supervised. A hang began at the last sign of progress."""
    failed = outcome.progress_at if outcome.stalled is not None else verdict.failed_at
    return Stamps(
        begin=begin,
        waited_s=waited_s,
        failed=failed,
        noticed=outcome.noticed_at,
        end=outcome.gone_at,
    )


def close_open_attempts(plan: Plan, run_id: str) -> list[AttemptEnd]:
    """Write the end of every attempt of this run that has none: its supervisor was killed.

    Call it only while holding the run's lock and after its processes are gone.
    """
    ledger_dir = Path(plan.ledger_dir)
    closed = []
    begin: float | None = None
    for entry in read_ledger(ledger_dir).attempts:
        if entry.start.run_id != run_id:
            continue
        end = entry.end
        if end is None:
            end = _reconstruct(entry, plan, begin)
            append(ledger_dir, end)
            closed.append(end)
        begin = end.time
    return closed


def _reconstruct(entry: Attempt, plan: Plan, begin: float | None) -> AttemptEnd:
    start = entry.start
    attempt = plan.run.attempt(start.attempt)
    records = read_records(attempt)
    last_sign = _last_sign_of_life(attempt, records, start.time)
    verdict = _verdict_from_files(plan, attempt, start, records)
    stamps = Stamps(
        begin=entry.began if begin is None else max(begin, entry.began),
        waited_s=0.0,
        failed=last_sign,
        noticed=last_sign,
        end=last_sign,
    )
    code = 0 if verdict.cause is None else verdict.exit_code or 1
    return account(start, attempt, stamps, verdict, code, durable_step(plan), reconstructed=True)


def _verdict_from_files(plan: Plan, attempt: AttemptDir, start: AttemptStart, records: Records) -> Verdict:
    """torchrun's own report tells an end whose record could not be written (a full disk) from a supervisor
    that was killed: then torchrun was told to end, or wrote nothing."""
    outcome = (read_json(attempt.agent_json) or {}).get("outcome")
    if outcome in ("done", "failed"):
        reached: bool | None = None
        if plan.bundled:
            last = max([start.resumed_step, durable_step(plan) or 0, *(step for step, _, _ in records.steps)])
            reached = last >= plan.settings.train.steps
        return classify(
            Ending(
                ranks=read_ends(attempt),
                agent_code=0 if outcome == "done" else 1,
                agent_error="",
                stop=None,
                stalled=None,
                noticed_at=None,
                trained=bool(records.steps),
                reached_end=reached,
            )
        )
    cause = CAUSES["launcher.supervisor"]
    return Verdict(cause=cause, detail="found open by a later launch", fingerprint=f"{cause.name}:")


def _last_sign_of_life(attempt: AttemptDir, records: Records, spawned: float) -> float:
    stamps = [spawned]
    for rank in attempt.ranks("heartbeat"):
        beat = read_heartbeat(attempt.heartbeat(rank))
        if beat is not None:
            stamps.append(beat.wall_ns / 1e9)
    stamps.extend(end for _, end, _ in records.steps[-1:])
    stamps.extend(rank.ended for rank in read_ends(attempt) if rank.ended is not None)
    for log in attempt.logs.glob("*"):
        with contextlib.suppress(OSError):
            stamps.append(log.stat().st_mtime)
    return min(max(stamps), time.time())
