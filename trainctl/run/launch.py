"""`trainctl launch`: plan, preflight, attempts, restarts, receipts. One run, told in order."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trainctl.errors import TrainctlError
from trainctl.exitcodes import ExitCode
from trainctl.host import processes
from trainctl.host.facts import Warmup
from trainctl.job.manifest import newest_verified, set_aside
from trainctl.job.plan import Plan, identity_values, read_plan
from trainctl.job.protocol import ENV_RUN_ID
from trainctl.job.rundir import AttemptDir, read_json, remove_tree, write_json
from trainctl.ledger.store import AttemptStart, append
from trainctl.run import close
from trainctl.run.classify import Ending, Verdict, classify
from trainctl.run.exits import read_ends
from trainctl.run.lock import hold
from trainctl.run.observer import LaunchObserver, Resume
from trainctl.run.planning import build_plan
from trainctl.run.policy import Action, Decision, Past, decide
from trainctl.run.preflight import Report, prepare
from trainctl.run.records import read_records
from trainctl.run.supervise import KILL_DEADLINE_S, Outcome, Signals, Supervisor
from trainctl.run.torchrun import rank_command, rank_environment
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
            if not options.fresh:
                _refuse_another_job(plan)
                if _finished(plan, observer):
                    return ExitCode.DONE
            _end_leftovers(plan, observer)
            measured: list[Warmup] = []

            def warm_up(plan: Plan) -> Warmup:
                warmup = run_warmup(plan, signals=signals, environ=environ)
                measured.extend([warmup] if warmup.ok else [])
                return warmup

            def make_plan(warmup: Warmup | None = None) -> Plan:
                known = warmup or (measured[0] if measured else None)
                return build_plan(config_path, overrides, environ, known)

            observer.checking()
            plan, report = prepare(
                make_plan, warm_up, quick=options.quick, fresh=options.fresh, environ=environ
            )
            if signals.count:
                return _interrupted(signals)
            observer.preflight(report)
            if not report.ok:
                return ExitCode.PREFLIGHT
            run_id = _open_run(plan, options.fresh, observer)
            return _Attempts(plan, run_id, report, signals, observer, environ, make_plan).run(began)
    finally:
        signals.restore()


def _interrupted(signals: Signals) -> ExitCode:
    return ExitCode.INTERRUPTED if signals.first == "interrupt" else ExitCode.REQUEUE


def _refuse_another_job(plan: Plan) -> None:
    """A run directory belongs to one model, one data set, one set of hyper-parameters."""
    if not plan.run.plan_json.exists():
        return
    before = read_plan(plan.run.plan_json)
    if before.identity_digest == plan.identity_digest:
        return
    old, new = identity_values(before.settings), identity_values(plan.settings)
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
    found, _ = newest_verified(plan.run.checkpoints)
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
        raise _unwritable(plan, error) from None
    return str(known["run_id"])


def _unwritable(plan: Plan, error: OSError) -> TrainctlError:
    return TrainctlError(
        "run-dir-unwritable",
        f"{plan.run_dir} cannot be written: {error.strerror}",
        hint="make it writable and free space there, or set job.runs_dir to another directory",
        exit_code=ExitCode.PREFLIGHT,
    )


def _end_leftovers(plan: Plan, observer: LaunchObserver) -> None:
    """A supervisor that was killed leaves torchrun saving and stopping: wait, then end what stays.

    Before preflight, which would find its memory in use; only while holding the run's lock.
    """
    run_id = str((read_json(plan.run.run_json) or {}).get("run_id", ""))
    if not run_id:
        return
    left = [stat.process for stat in processes.find_by_environment(ENV_RUN_ID, run_id)]
    if not left:
        return
    observer.waiting(plan.grace_s, f"for {len(left)} processes of an earlier launch of this run to end")
    left = processes.wait_gone(left, plan.grace_s)
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


class _Attempts:
    """The loop over attempts, with what one hands to the next."""

    def __init__(
        self,
        plan: Plan,
        run_id: str,
        report: Report,
        signals: Signals,
        observer: LaunchObserver,
        environ: Mapping[str, str],
        replan: Callable[[], Plan],
    ) -> None:
        self.plan = plan
        self.run_id = run_id
        self.report = report
        self.signals = signals
        self.observer = observer
        self.environ = environ
        self.replan = replan
        self.past: list[Past] = []
        self.waited_s = 0.0

    def run(self, began: float) -> ExitCode:
        for end in close.close_open_attempts(self.plan, self.run_id):
            self.observer.note(
                f"attempt {end.attempt} was left open by a launcher that was killed; it is closed now"
            )
        begin = began
        while True:
            decision, begin = self._attempt(begin)
            if decision.action is not Action.RESTART:
                return decision.exit_code
            if self._wait(decision.delay_s):
                return _interrupted(self.signals)
            # what the attempt measured and how it ended may move the interval
            self.plan = self.replan()

    def _attempt(self, begin: float) -> tuple[Decision, float]:
        """One attempt; returns what to do next and when it ended."""
        plan = self.plan
        resume = self._choose_checkpoint()
        attempt = self._open_attempt()
        start = AttemptStart(
            run_id=self.run_id,
            job=plan.settings.job.name,
            attempt=attempt.number,
            time=time.time(),
            begin=begin,
            hosts=(socket.gethostname(),),
            world=plan.layout.world,
            device=plan.device,
            config_digest=plan.config_digest,
            identity_digest=plan.identity_digest,
            resumed_step=resume.step,
            resumed_from=Path(resume.path).name,
            save_steps=plan.save.steps,
            restart_of=bool(self.past),
        )
        append(Path(plan.ledger_dir), start)
        self.observer.planned(plan)
        self.observer.attempt_started(attempt, resume, plan.save.steps)

        resume_path = Path(resume.path) if resume.path else None
        supervisor = Supervisor(
            plan,
            attempt,
            self.run_id,
            rank_command(plan, attempt, resume_path),
            rank_environment(plan, attempt, resume_path, self.run_id, self.environ),
            self.signals,
            self.observer,
            resumed_step=resume.step,
        )
        outcome = supervisor.run()
        verdict = classify(_ending(plan, attempt, outcome, resume))
        self._remove_unfinished_saves()
        durable = close.durable_step(plan)
        decision = decide(verdict, self.past, durable or 0, plan.settings.restart)
        if self.signals.count and decision.action is Action.RESTART:
            # asked to stop while a failure was on its way: the request wins
            decision = Decision(
                action=Action.STOP,
                exit_code=_interrupted(self.signals),
                reason="stopped on request, not restarted",
            )
        self._record(start, attempt, outcome, verdict, decision, durable, begin)
        self.observer.attempt_ended(attempt, outcome, verdict, decision, durable or 0)
        self.past.append(Past(fingerprint=verdict.fingerprint, durable_step=durable or 0))
        return decision, outcome.gone_at

    def _open_attempt(self) -> AttemptDir:
        """Make the directory of the next attempt, with what was planned and found."""
        plan = self.plan
        try:
            plan.run.stop_request.unlink(missing_ok=True)  # it was meant for the attempt before
            plan.write(plan.run.plan_json)
            attempt = plan.run.new_attempt()
            plan.write(attempt.plan_json)
            write_json(attempt.preflight_json, self.report.to_json())
        except OSError as error:
            raise _unwritable(plan, error) from None
        return attempt

    def _choose_checkpoint(self) -> Resume:
        """The newest checkpoint that verifies; newer ones that do not are renamed, and said aloud."""
        if not self.plan.bundled and not self.plan.run.checkpoints.exists():
            return Resume()
        found, rejected = newest_verified(self.plan.run.checkpoints)
        reasons = []
        for item in rejected:
            kept = set_aside(item)
            where = f", kept as {kept.name}" if kept is not None else ""
            reasons.append(f"{item.path.name}: {item.reason}{where}")
        if found is None:
            return Resume(rejected=tuple(reasons))
        path, manifest = found
        if manifest.identity_digest != self.plan.identity_digest:
            raise TrainctlError(
                "checkpoint-differs",
                f"{path} was written by another configuration (identity {manifest.identity_digest}, "
                f"this one is {self.plan.identity_digest})",
                hint="give this configuration another job.name, or start over with --fresh",
            )
        return Resume(step=manifest.step, path=str(path), rejected=tuple(reasons))

    def _remove_unfinished_saves(self) -> None:
        """A save that the failure cut short is no checkpoint; on a full disk its space is needed."""
        _, rejected = newest_verified(self.plan.run.checkpoints, digests=False)
        for item in rejected:
            if not (item.path / "MANIFEST.json").exists():
                try:
                    remove_tree(item.path)
                except OSError:
                    continue  # the next attempt sets it aside

    def _record(
        self,
        start: AttemptStart,
        attempt: AttemptDir,
        outcome: Outcome,
        verdict: Verdict,
        decision: Decision,
        durable: int | None,
        begin: float,
    ) -> None:
        stamps = close.stamps_of(begin, self.waited_s, outcome, verdict)
        end = close.account(start, attempt, stamps, verdict, _ledger_code(verdict), durable)
        self.waited_s = 0.0
        try:
            append(Path(self.plan.ledger_dir), end)
            decided = {
                **asdict(decision),
                "action": decision.action.value,
                "exit_code": int(decision.exit_code),
            }
            record = {**start.model_dump(mode="json"), **end.model_dump(mode="json"), "decision": decided}
            write_json(attempt.attempt_json, record)
        except (TrainctlError, OSError) as error:
            # a full disk; the next launch closes this attempt from its files
            self.observer.note(f"the ledger entry of attempt {attempt.number} is not written: {error}")

    def _wait(self, seconds: float) -> bool:
        """Back off; True when a signal came meanwhile."""
        if seconds > 0:
            self.observer.waiting(seconds, "before the next restart, because the last one made no progress")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.signals.count:
            time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))
        self.waited_s = seconds
        return self.signals.count > 0


def _ledger_code(verdict: Verdict) -> int:
    """0 exactly when the planned end was reached; otherwise the rank's own code, or 1."""
    return 0 if verdict.cause is None else verdict.exit_code or 1


def _ending(plan: Plan, attempt: AttemptDir, outcome: Outcome, resume: Resume) -> Ending:
    reached: bool | None = None
    if plan.bundled:
        records = read_records(attempt)
        last = max([resume.step, *(step for step, _, _ in records.steps[-1:])])
        reached = last >= plan.settings.train.steps
    return Ending(
        ranks=read_ends(attempt),
        agent_code=outcome.agent_code,
        agent_error=outcome.agent_error,
        stop=outcome.stop,
        stalled=outcome.stalled,
        noticed_at=outcome.noticed_at,
        trained=outcome.trained,
        reached_end=reached,
    )
