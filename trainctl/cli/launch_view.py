"""What a person sees while a launch runs: plain lines, and on a terminal one line of progress.

A pipe gets the same words with the time in front. Decides nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainctl.cli import ui
from trainctl.job.units import human_count, human_seconds
from trainctl.run.causes import Restart
from trainctl.run.exits import tail_lines
from trainctl.run.policy import Action
from trainctl.run.states import State
from trainctl.run.tails import LineTail, RecordTail, number

if TYPE_CHECKING:
    from rich.status import Status

    from trainctl.job.plan import Plan
    from trainctl.job.protocol import Heartbeat
    from trainctl.job.rundir import AttemptDir
    from trainctl.run.classify import Verdict
    from trainctl.run.observer import Resume
    from trainctl.run.policy import Decision
    from trainctl.run.preflight import Report
    from trainctl.run.supervise import Outcome

_REFRESH_S = 0.25
_QUIET_S = 30.0  # a pipe hears at least this often that the run is alive
_SHOWN_LINES = 15
_HOLD_S = 1.0  # stderr of rank 0 waits: when another rank broke, its complaints only hide the cause
_LABEL = 11
_SHORT_CHARS = 60
_SILENT_S = 10.0


class LaunchView:
    """A `run.observer.LaunchObserver` that prints."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._host = socket.gethostname().split(".")[0]
        self._terminal = ui.out().is_terminal
        self._progress: Status | None = None
        self._plan: Plan | None = None
        self._said_plan = ""
        self._resume_step = 0
        self._refreshed = 0.0
        self._spoke = time.monotonic()

    # --- before the first attempt -------------------------------------------------------------

    def note(self, text: str) -> None:
        self._line(text)

    def checking(self) -> None:
        from trainctl.cli.preflight import CHECKING

        self._start_progress(CHECKING)

    def preflight(self, report: Report) -> None:
        from trainctl.cli.preflight import show_before_launch

        self._stop_progress()
        try:
            show_before_launch(report, verbose=self._verbose)
        except OSError:
            self._unheard()

    def planned(self, plan: Plan) -> None:
        self._plan = plan
        save = plan.save
        every = f"save every {save.steps:,} steps ({human_seconds(save.steps * save.step_s)})"
        if save.basis == "config":
            why = f"as configured; {plan.settings.checkpoint.formula} says {save.best_steps:,}"
        else:
            why = (
                f"{save.basis}: MTBF {human_seconds(save.mtbf_s)} from {save.mtbf_basis}; "
                f"a save blocks {human_seconds(save.cost_s)}, {save.cost_basis}"
            )
        if (said := f"{every}, {why}") != self._said_plan:
            self._said_plan = said
            self._labelled("plan", said)

    # --- attempts -----------------------------------------------------------------------------

    def attempt_started(self, attempt: AttemptDir, resume: Resume, save_steps: int) -> None:
        for reason in resume.rejected:
            self._labelled("checkpoint", f"not used: {reason}", style="yellow")
        start = f"from step {resume.step:,}, verified" if resume.step else "from scratch"
        self._labelled("run", f"{_short(attempt.path)} · {start} · logs in {_short(attempt.logs)}")
        self._resume_step = resume.step
        self._out, self._err = LineTail(attempt.stdout(0)), LineTail(attempt.stderr(0))
        self._held: list[tuple[float, str]] = []
        self._records = RecordTail(attempt.steps(0))
        self._started = time.monotonic()
        self._start_progress("starting torchrun")

    def tick(self, attempt: AttemptDir, state: State, beats: Mapping[int, Heartbeat]) -> None:
        now = time.monotonic()
        for line in self._out.read():
            self._rank_line(0, line)
        self._held.extend((now, line) for line in self._err.read())
        if state in (State.STARTING, State.RUNNING):
            while self._held and now - self._held[0][0] > _HOLD_S:
                self._rank_line(0, self._held.pop(0)[1])
        if now - self._refreshed < _REFRESH_S:
            return
        self._refreshed = now
        if self._progress is not None:
            self._progress.update(self._progress_line(state, beats))
        elif now - self._spoke >= _QUIET_S:
            self._line(self._progress_line(state, beats))

    def changed(self, attempt: AttemptDir, state: State, why: str) -> None:
        if state is State.ENDING and not why:
            grace = human_seconds(self._plan.grace_s) if self._plan is not None else "the grace"
            self._line(f"stopping: ranks save and leave, for at most {grace}; Ctrl-C again ends them at once")
        elif state is State.KILLING and why in ("the grace is over", "asked twice"):
            self._line(f"ending what is left by SIGKILL: {why}")

    def attempt_ended(
        self,
        attempt: AttemptDir,
        outcome: Outcome,
        verdict: Verdict,
        decision: Decision,
        durable_step: int | None,
    ) -> None:
        self._stop_progress()
        for line in self._out.rest():
            self._rank_line(0, line)
        if verdict.cause is None or verdict.cause.restart is Restart.PLANNED:
            for line in [*(line for _, line in self._held), *self._err.rest()]:
                self._rank_line(0, line)
        if outcome.survivors:
            pids = ", ".join(str(process.pid) for process in outcome.survivors)
            self._labelled(
                "left over", f"pid {pids} cannot be ended (state D, or another user's)", style="red"
            )
        if verdict.cause is None:
            self._done(attempt)
            return
        step = self._last_step()
        self._explain(attempt, verdict, step)
        if decision.action is Action.RESTART:
            said = decision.reason.removeprefix("restart ")
            self._detail(
                "restart", said if durable_step is None else f"{said}, {_origin(durable_step, step)}"
            )
        elif verdict.cause.restart is Restart.PLANNED:
            self._detail("stopped", _kept(durable_step, step))
        else:
            self._detail("stopped", f"{decision.reason}; {_kept(durable_step, step)}")

    def waiting(self, seconds: float, why: str) -> None:
        self._line(f"waiting up to {human_seconds(seconds)} {why}")

    def close(self) -> None:
        self._stop_progress()

    # --- pieces -------------------------------------------------------------------------------

    def _explain(self, attempt: AttemptDir, verdict: Verdict, step: int) -> None:
        assert verdict.cause is not None
        planned = verdict.cause.restart is Restart.PLANNED
        who = f" · {self._host}:{verdict.rank}" if verdict.rank is not None and not planned else ""
        where = f"after step {step:,}" if step else "before its first step"
        short = len(verdict.detail) <= _SHORT_CHARS
        what = f"{verdict.cause.says}: {verdict.detail}" if verdict.detail and short else verdict.cause.says
        self._line(
            f"attempt {attempt.number} ended {where}: {what}{who}", style=None if planned else "bold red"
        )
        if not short:
            self._detail("found", verdict.detail)
        if planned:
            return
        log = verdict.file or attempt.agent_log
        self._detail("read", _short(log))
        for line in tail_lines(log, _SHOWN_LINES):
            self._rank_line("torchrun" if verdict.rank is None else verdict.rank, line)
        if verdict.cause.advice:
            self._detail("advice", verdict.cause.advice)

    def _done(self, attempt: AttemptDir) -> None:
        step = self._last_step()
        held_out = self._records.read().get("evaluation", {}).get("loss")
        loss = f" · held-out loss {held_out:.3f}" if isinstance(held_out, float) else ""
        self._line(f"done: step {step:,} reached by attempt {attempt.number}{loss}", style="bold green")

    def _last_step(self) -> int:
        return int(number(self._records.read().get("step", {}), "step") or self._resume_step)

    def _progress_line(self, state: State, beats: Mapping[int, Heartbeat]) -> str:
        record = self._records.read().get("step", {})
        if number(record, "step") is None or self._plan is None:
            return f"{state.value}, for {human_seconds(time.monotonic() - self._started)}"
        step, total = self._last_step(), self._plan.settings.train.steps
        parts = [f"step {step:,}/{total:,}" if self._plan.bundled else f"step {step:,}"]
        loss, seconds, tokens = (number(record, name) for name in ("loss", "seconds", "tokens"))
        if loss is not None:
            parts.append(f"loss {loss:.3f}")
        if seconds and tokens:
            parts.append(f"{human_count(tokens / seconds)} tok/s")
        if seconds:
            parts.append(f"{human_seconds(seconds)}/step")
        if self._plan.bundled:
            save_steps = self._plan.save.steps
            parts.append(f"next save in {min(save_steps - step % save_steps, total - step):,} steps")
        silent = [rank for rank, beat in beats.items() if beat.age_s() > _SILENT_S]
        parts.append(f"{len(beats) - len(silent)} of {self._plan.layout.world} ranks beating")
        return " · ".join(parts)

    def _rank_line(self, rank: int | str, line: str) -> None:
        self._line(f"{self._host}:{rank} {line}" if isinstance(rank, int) else f"{rank} {line}", style="dim")

    def _labelled(self, label: str, text: str, style: str | None = None) -> None:
        self._line(f"{label:<{_LABEL}} {text}", style=style, indent=_LABEL + 1)

    def _detail(self, label: str, text: str) -> None:
        self._line(f"  {label:<{_LABEL - 2}} {text}", indent=_LABEL)

    def _line(self, text: str, style: str | None = None, indent: int = 0) -> None:
        """indent: where the lines that a narrow terminal needs beyond the first begin."""
        self._spoke = time.monotonic()
        if not self._terminal:
            text = f"{time.strftime('%H:%M:%S')} {text}"
        elif indent:
            text = ui.wrapped(text, indent)
        try:
            ui.out().print(text, style=style, markup=False)
        except OSError:
            self._unheard()

    def _unheard(self) -> None:
        """The reader left (`| head`), or the terminal is gone: the run goes on, its logs are on disk."""
        self._terminal = False
        ui.deafen()

    def _start_progress(self, text: str) -> None:
        if self._terminal:
            self._progress = ui.out().status(text)
            self._progress.start()

    def _stop_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _short(path: os.PathLike[str]) -> str:
    """Relative to the working directory when that is shorter."""
    return min(os.path.relpath(path), str(path), key=len)


def _origin(durable_step: int, step: int) -> str:
    """ "from step 134 (24 steps to redo)" """
    redo = max(0, step - durable_step)
    steps = "1 step" if redo == 1 else f"{redo:,} steps"
    return f"from {f'step {durable_step:,}' if durable_step else 'the start'} ({steps} to redo)"


def _kept(durable_step: int | None, step: int) -> str:
    """What a later launch finds. Nothing is said of a trainer that keeps its checkpoints elsewhere."""
    if durable_step is None:
        return f"after step {step:,}"
    lost = step - durable_step
    newest = f"step {durable_step:,}" if durable_step else "none"
    return f"newest checkpoint: {newest}" + (f", {lost:,} steps after it are lost" if lost > 0 else "")
