"""`trainctl launch`: plan, preflight, attempts, restarts, receipts. One run, told in order."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainctl.errors import TrainctlError
from trainctl.exitcodes import ExitCode
from trainctl.host import processes
from trainctl.host.facts import Warmup
from trainctl.job.manifest import newest_verified
from trainctl.job.plan import Plan, identity_values, read_plan
from trainctl.job.protocol import ENV_RUN_ID
from trainctl.job.rundir import read_json, write_json
from trainctl.run.attempts import Attempts
from trainctl.run.close import close_open_attempts
from trainctl.run.lock import hold, unreadable, unwritable
from trainctl.run.observer import LaunchObserver
from trainctl.run.planning import build_plan, refresh
from trainctl.run.preflight import prepare
from trainctl.run.signals import Signals
from trainctl.run.supervise import KILL_DEADLINE_S
from trainctl.run.warmup import run_warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """fresh: start over, the old run is kept beside. quick: no warm-up. environ: what ranks inherit."""

    fresh: bool = False
    quick: bool = False
    environ: Mapping[str, str] | None = None


def launch(
    config_path: Path,
    overrides: Sequence[str],
    options: Options,
    observer: LaunchObserver,
) -> ExitCode:
    """Run the job of `config_path` until its last step, or until a restart cannot help any more.

    Raises TrainctlError for what stops it before anything was started.
    """
    environ = dict(os.environ if options.environ is None else options.environ)
    began = time.time()
    signals = Signals()
    signals.install()
    try:
        plan = build_plan(config_path, overrides, environ)
        with hold(plan.run):
            _settle(plan, signals, observer)
            if not options.fresh:
                _refuse_another_job(plan)
                if _finished(plan, observer):
                    return ExitCode.DONE
            measured: list[Warmup] = []

            def warm_up(plan: Plan) -> Warmup:
                warmup = run_warmup(plan, signals=signals, environ=environ)
                measured.append(warmup)
                return warmup

            def make_plan(warmup: Warmup | None = None) -> Plan:
                return plan if warmup is None else refresh(plan, warmup)

            if signals.asked():
                return signals.exit_code
            observer.checking()
            plan, report = prepare(
                make_plan, warm_up, quick=options.quick, fresh=options.fresh, environ=environ
            )
            if signals.asked():
                return signals.exit_code
            observer.preflight(report)
            if not report.ok:
                return ExitCode.PREFLIGHT
            run_id = _open_run(plan, options.fresh, observer)
            warmup = next((warmup for warmup in measured if warmup.ok), None)
            return Attempts(plan, run_id, report, warmup, signals, observer, environ).run(began)
    finally:
        signals.restore()


def _refuse_another_job(plan: Plan) -> None:
    """A run directory belongs to one model, one data set, one set of hyper-parameters."""
    if not plan.run.plan_json.exists():
        return
    before = read_plan(plan.run.plan_json)
    if before.identity_digest == plan.identity_digest:
        return
    old = identity_values(before.settings, before.global_batch)
    new = identity_values(plan.settings, plan.global_batch)
    changed = tuple(
        f"{key}: {old.get(key)!r} in the run, {new.get(key)!r} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    )
    raise TrainctlError(
        "run-differs",
        f"{plan.run_dir} holds a run of another configuration, whose checkpoints do not fit this one",
        context=changed,
        hint="undo the change, give it another job.name, or start over with --fresh (the old run is kept)",
    )


def _finished(plan: Plan, observer: LaunchObserver) -> bool:
    if not plan.bundled:
        return False
    try:
        found, _ = newest_verified(plan.run.checkpoints)
    except OSError as error:
        raise unreadable(plan.run, error) from None
    if found is None or found[1].step < plan.settings.train.steps:
        return False
    observer.note(
        f"nothing to do: {plan.run_dir} has reached step {found[1].step:,} of {plan.settings.train.steps:,}; "
        "raise train.steps to go on, or start over with --fresh"
    )
    return True


def _open_run(plan: Plan, fresh: bool, observer: LaunchObserver) -> str:
    """Make or reopen the run directory; returns the run's id."""
    run = plan.run
    try:
        known = read_json(run.run_json)
        if fresh and run.path.exists():
            observer.note(f"starting over; the run before is kept as {run.set_aside()}")
            known = None
        if known is None:
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
            known = {
                "run_id": f"{plan.settings.job.name}-{stamp}-{secrets.token_hex(2)}",
                "job": plan.settings.job.name,
                "created": time.time(),
            }
            write_json(run.run_json, known)
        run.checkpoints.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(plan.run, error) from None
    return str(known["run_id"])


def _settle(plan: Plan, signals: Signals, observer: LaunchObserver) -> None:
    """What a launcher that was killed left undone: its processes, its open attempts, a stop request.

    Before preflight, which would find its memory in use; only while holding the run's lock.
    """
    run_id = str((read_json(plan.run.run_json) or {}).get("run_id", ""))
    if not run_id:
        return
    _end_leftovers(run_id, plan, signals, observer)
    for end in close_open_attempts(plan, run_id):
        observer.note(f"attempt {end.attempt} was left open by a launcher that was killed; it is closed now")
    with contextlib.suppress(OSError):
        plan.run.stop_request.unlink(missing_ok=True)  # it was meant for an attempt that is over


def _end_leftovers(run_id: str, plan: Plan, signals: Signals, observer: LaunchObserver) -> None:
    """torchrun saves and stops when its supervisor dies: wait as long as it was promised, then end it."""
    left = [stat.process for stat in processes.find_by_environment(ENV_RUN_ID, run_id)]
    if not left:
        return
    try:
        grace_s = max(plan.grace_s, read_plan(plan.run.plan_json).grace_s)
    except TrainctlError:
        grace_s = plan.grace_s
    observer.waiting(grace_s, f"for {len(left)} processes of an earlier launch of this run to end")
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline and not signals.asked():
        left = processes.wait_gone(left, 0.2)
    if signals.asked():
        return
    for process in left:
        processes.send_signal(process, signal.SIGKILL)
    left = processes.wait_gone(left, KILL_DEADLINE_S)
    if left:
        raise TrainctlError(
            "leftovers",
            f"{len(left)} processes of an earlier launch cannot be ended",
            context=tuple(f"pid {process.pid}" for process in left),
            hint="they are in state D or belong to another user; see `ps -o pid,user,stat,wchan,args`",
            exit_code=ExitCode.PREFLIGHT,
        )
