"""The attempts of one launch: run, classify, record, decide, again. What one hands to the next is here."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from trainctl.errors import TrainctlError
from trainctl.exitcodes import ExitCode
from trainctl.host.facts import Warmup
from trainctl.job.manifest import MANIFEST, newest_verified, set_aside
from trainctl.job.plan import Plan
from trainctl.job.rundir import AttemptDir, remove_tree, write_json
from trainctl.ledger.store import AttemptEnd, AttemptStart, append
from trainctl.run import close
from trainctl.run.classify import Ending, Verdict, classify
from trainctl.run.evidence import gather
from trainctl.run.lock import unreadable, unwritable
from trainctl.run.observer import LaunchObserver, Resume
from trainctl.run.planning import refresh
from trainctl.run.policy import Action, Decision, Past, decide
from trainctl.run.preflight import Report
from trainctl.run.records import read_records
from trainctl.run.signals import Signals
from trainctl.run.supervise import Outcome, Supervisor
from trainctl.run.torchrun import rank_command, rank_environment


class Attempts:
    """The loop over attempts, with what one hands to the next."""

    def __init__(
        self,
        plan: Plan,
        run_id: str,
        report: Report,
        warmup: Warmup | None,
        signals: Signals,
        observer: LaunchObserver,
        environ: Mapping[str, str],
    ) -> None:
        self.plan = plan
        self.run_id = run_id
        self.report = report
        self.warmup = warmup
        self.signals = signals
        self.observer = observer
        self.environ = environ
        self.past: list[Past] = []
        self.waited_s = 0.0

    def run(self, began: float) -> ExitCode:
        """Until an attempt ends in a way that a restart cannot mend. began: unix seconds of the launch."""
        begin = began
        while not self.signals.asked():
            decision, begin = self._attempt(begin)
            if decision.action is not Action.RESTART:
                return decision.exit_code
            self._wait(decision.delay_s)
            # what the attempt measured and how it ended may move the interval
            self.plan = refresh(self.plan, self.warmup)
        return self.signals.exit_code

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

        outcome = self._supervise(attempt, resume)
        self._remove_unfinished_saves()
        durable = close.durable_step(plan)
        reached_end = _reached_end(plan, attempt, max(resume.step, durable or 0))
        ending = gather(attempt, outcome, reached_end)
        verdict = classify(ending)
        stamps = close.stamps_of(begin, self.waited_s, outcome, verdict)
        end = close.account(start, attempt, stamps, verdict, _ledger_code(verdict), durable)
        # a trainer that keeps its checkpoints elsewhere is believed by its steps
        progress = end.last_step if durable is None else durable
        decision = self._decide(verdict, outcome, progress)
        self._record(attempt, start, end, decision, ending)
        self.observer.attempt_ended(attempt, outcome, verdict, decision, durable)
        self.past.append(Past(fingerprint=verdict.fingerprint, durable_step=progress))
        return decision, outcome.gone_at

    def _supervise(self, attempt: AttemptDir, resume: Resume) -> Outcome:
        path = Path(resume.path) if resume.path else None
        return Supervisor(
            self.plan,
            attempt,
            self.run_id,
            rank_command(self.plan, attempt),
            rank_environment(self.plan, attempt, path, self.run_id, self.environ),
            self.signals,
            self.observer,
            resumed_step=resume.step,
        ).run()

    def _decide(self, verdict: Verdict, outcome: Outcome, progress: int) -> Decision:
        decision = decide(verdict, self.past, progress, self.plan.settings.restart)
        if decision.action is not Action.RESTART:
            return decision
        if self.signals.asked():
            # asked to stop while a failure was on its way: the request wins
            reason, code = "stopped on request, not restarted", self.signals.exit_code
        elif outcome.survivors:
            # it may wake up and write into what the next attempt writes
            count = len(outcome.survivors)
            reason = f"{count} process{'' if count == 1 else 'es'} of the attempt cannot be ended"
            code = ExitCode.POINTLESS
        else:
            return decision
        return Decision(action=Action.STOP, exit_code=code, reason=reason)

    def _open_attempt(self) -> AttemptDir:
        """Make the directory of the next attempt, with what was planned and found."""
        plan = self.plan
        try:
            plan.write(plan.run.plan_json)
            attempt = plan.run.new_attempt()
            plan.write(attempt.plan_json)
            write_json(attempt.preflight_json, self.report.to_json())
        except OSError as error:
            raise unwritable(plan.run, error) from None
        return attempt

    def _choose_checkpoint(self) -> Resume:
        """The newest checkpoint that verifies; newer ones that do not are renamed, and said aloud."""
        if not self.plan.bundled:
            return Resume()  # it keeps its checkpoints in a form and place of its own
        try:
            found, rejected = newest_verified(self.plan.run.checkpoints)
        except OSError as error:
            raise unreadable(self.plan.run, error) from None
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
        if not self.plan.bundled:
            return
        with contextlib.suppress(OSError):  # what stays is set aside by the next attempt
            _, rejected = newest_verified(self.plan.run.checkpoints, digests=False)
            for item in rejected:
                if not (item.path / MANIFEST).exists():
                    remove_tree(item.path)

    def _record(
        self, attempt: AttemptDir, start: AttemptStart, end: AttemptEnd, decision: Decision, ending: Ending
    ) -> None:
        """The receipt, in the ledger and in the run directory."""
        self.waited_s = 0.0
        decided = {"action": decision.action.value, "exit_code": int(decision.exit_code)}
        record = {
            **start.model_dump(mode="json"),
            **end.model_dump(mode="json"),
            "decision": {**decided, "reason": decision.reason, "delay_s": decision.delay_s},
            "ranks": [rank.to_json() for rank in ending.ranks],
        }
        try:
            append(Path(self.plan.ledger_dir), end)
            write_json(attempt.attempt_json, record)
        except (TrainctlError, OSError) as error:
            # a full disk; the next launch closes this attempt from its files
            self.observer.note(f"the ledger entry of attempt {attempt.number} is not written: {error}")

    def _wait(self, seconds: float) -> None:
        """Back off, until a signal comes."""
        if seconds > 0:
            self.observer.waiting(seconds, "before the next restart, because the last one made no progress")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.signals.asked():
            time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))
        self.waited_s = seconds


def _ledger_code(verdict: Verdict) -> int:
    """0 exactly when the planned end was reached; otherwise the rank's own code, or 1."""
    return 0 if verdict.cause is None else verdict.exit_code or 1


def _reached_end(plan: Plan, attempt: AttemptDir, known_step: int) -> bool | None:
    """known_step: completed for certain, also when the records of it were lost on a full disk."""
    if not plan.bundled:
        return None
    last = max([known_step, *(step for step, _, _ in read_records(attempt).steps[-1:])])
    return last >= plan.settings.train.steps
