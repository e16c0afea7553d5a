"""One attempt, from spawning torchrun to the proof that nothing of it is left.

The tick loop gathers events, one table says what they mean, and entering a state acts. Signal
handlers only count; nothing here prints.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from trainctl.exitcodes import PayloadExit
from trainctl.host import processes
from trainctl.host.processes import Process
from trainctl.job.plan import Plan
from trainctl.job.protocol import ENV_RUN_ID, Heartbeat, Phase, read_heartbeat
from trainctl.job.rundir import AttemptDir, read_json
from trainctl.run.exits import read_status
from trainctl.run.signals import Signals
from trainctl.run.states import TRANSITIONS, Event, State
from trainctl.run.torchrun import spawn_agent

TICK_S = 0.05
PEER_GRACE_S = 10.0  # for healthy ranks to notice that one has died, and to write why they stop
AGENT_MARGIN_S = 3.0  # torchrun kills its ranks when the grace is over; then it must still exit
SECOND_INTERRUPT_S = 0.5  # a key that bounces is one Ctrl-C
KILL_DEADLINE_S = 30.0  # a process in state D cannot be killed: give up and name it


class Observer(Protocol):
    """Who is told while an attempt runs. The command line shows it; tests record it."""

    def tick(self, attempt: AttemptDir, state: State, beats: Mapping[int, Heartbeat]) -> None: ...
    def changed(self, attempt: AttemptDir, state: State, why: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one attempt went. Times are unix seconds."""

    spawned_at: float
    noticed_at: float | None  # the moment the supervisor knew that it would end
    progress_at: float  # last new heartbeat, or the spawn
    gone_at: float
    agent_code: int | None
    agent_error: str
    stop: str | None
    stalled: str | None
    trained: bool
    survivors: tuple[Process, ...]  # could not be ended: in state D, or not ours


class Supervisor:
    """Runs one attempt. `run` blocks until it is over; call it from the main thread."""

    def __init__(
        self,
        plan: Plan,
        attempt: AttemptDir,
        run_id: str,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        signals: Signals,
        observer: Observer,
        resumed_step: int = 0,
    ) -> None:
        self.plan = plan
        self.attempt = attempt
        self.run_id = run_id
        self.command = command
        self.environment = environment
        self.signals = signals
        self.observer = observer
        self._deaf = False
        self.resumed_step = resumed_step
        self.state: State = State.STARTING
        self.stop: str | None = None
        self.stalled: str | None = None
        self.noticed_at: float | None = None
        self.deadline = float("inf")
        self.trained = False
        self.beats: dict[int, Heartbeat] = {}
        self._progress_at = time.monotonic()
        self._last_tick = time.monotonic()
        self._survivors: tuple[Process, ...] = ()
        self._ended_code = 0
        self._stop_at = float("inf")  # monotonic seconds when the stop was accepted
        self._strangers: frozenset[Process] = frozenset()

    def run(self) -> Outcome:
        processes.become_subreaper()
        own = processes.descendants(os.getpid())
        self._strangers = frozenset(
            stat.process for stat in own
        )  # children of this program, not of the attempt
        spawned_at = time.time()
        self.agent = spawn_agent(self.plan, self.attempt, self.run_id, self.command, self.environment)
        self._agent_process = processes.identify(self.agent.pid)
        try:
            while not self._tick():
                time.sleep(TICK_S)
        except BaseException:
            self._abandon()
            raise
        report = read_json(self.attempt.agent_json) or {}
        return Outcome(
            spawned_at=spawned_at,
            noticed_at=self.noticed_at,
            progress_at=max([spawned_at, *(beat.wall_ns / 1e9 for beat in self.beats.values())]),
            gone_at=time.time(),
            agent_code=self.agent.poll(),
            agent_error=str(report.get("error", "")),
            stop=self.stop,
            stalled=self.stalled,
            trained=self.trained,
            survivors=self._survivors,
        )

    def _tick(self) -> bool:
        """Look, decide, act once; True when the attempt is over."""
        for event, why in self._events():
            self._apply(event, why)
        self._tell(lambda: self.observer.tick(self.attempt, self.state, self.beats))
        strangers = [process.pid for process in self._strangers]
        processes.reap_adopted(except_pids=[self.agent.pid, *strangers])
        return self.state is State.GONE

    def _tell(self, message: Callable[[], None]) -> None:
        """A view that breaks must not end training: it is told nothing more, and why is in the log."""
        if self._deaf:
            return
        try:
            message()
        except Exception:
            self._deaf = True
            with contextlib.suppress(OSError), open(self.attempt.logs / "launcher.log", "a") as log:
                traceback.print_exc(file=log)

    def _abandon(self) -> None:
        """A bug in here: ranks get the grace to save, because nothing may outlive its supervisor."""
        if self._agent_process is not None:
            processes.send_signal(self._agent_process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.agent.wait(self.plan.grace_s + AGENT_MARGIN_S)
        deadline = time.monotonic() + KILL_DEADLINE_S
        while self._kill_everything() and time.monotonic() < deadline:
            time.sleep(TICK_S)

    # --- what happened since the last tick ---------------------------------------------------

    def _events(self) -> list[tuple[Event, str]]:
        events: list[tuple[Event, str]] = []
        self._read_progress()
        if self.signals.count and self.stop is None:
            self.stop, self._stop_at = self.signals.first, time.monotonic()
            events.append((Event.STOP_ASKED, ""))
        elif any(stamp > self._stop_at + SECOND_INTERRUPT_S for stamp in self.signals.interrupts):
            events.append((Event.HARD_STOP, "asked twice"))
        if self.trained and self.state is State.STARTING:
            events.append((Event.FIRST_STEP, ""))
        if self.agent.poll() is not None:
            events.append((Event.AGENT_EXITED, f"torchrun exited with {self.agent.returncode}"))
        elif self.state in (State.STARTING, State.RUNNING):
            events.extend(self._rank_events())
        if time.monotonic() >= self.deadline:
            events.append((Event.DEADLINE, "the grace is over"))
        if self.state is State.KILLING and not self._kill_everything():
            events.append((Event.ALL_GONE, ""))
        return events

    def _rank_events(self) -> list[tuple[Event, str]]:
        for rank in self.attempt.ranks("exits"):
            status = read_status(self.attempt, rank)
            code = (status or {}).get("exit_code")
            if code not in (0, None):
                self._ended_code = int(code)
                return [(Event.RANK_ENDED, f"rank {rank} ended with {code}")]
        silent_s = time.monotonic() - self._progress_at
        watchdog = self.plan.settings.watchdog
        if self.state is State.STARTING and silent_s > watchdog.startup_s and self._can_judge():
            return [
                (Event.STALLED, f"no first step within {watchdog.startup_s:g} s of the last sign of life")
            ]
        done = all(beat.phase is Phase.DONE for beat in self.beats.values())  # exporting, say: not a step
        if self.state is State.RUNNING and silent_s > watchdog.stall_s and not done:
            return [(Event.STALLED, f"no rank made progress for {watchdog.stall_s:g} s, {self._where()}")]
        return []

    def _can_judge(self) -> bool:
        """A trainer that never beats is not hung for want of beats: unknown is not failed.

        Before any rank was started, it is torchrun that is waited for.
        """
        return self.plan.bundled or bool(self.beats) or not self.attempt.ranks("exits")

    def _read_progress(self) -> None:
        """Read heartbeats; any new one restarts the stall timer, and so does our own suspension."""
        now = time.monotonic()
        if now - self._last_tick > max(5.0, 20 * TICK_S):
            self._progress_at = now  # this process was stopped or the node suspended: silence proves nothing
        self._last_tick = now
        for rank in self.attempt.ranks("heartbeat"):
            beat = read_heartbeat(self.attempt.heartbeat(rank))
            before = self.beats.get(rank)
            if beat is None or (before is not None and before.seq == beat.seq and before.pid == beat.pid):
                continue
            self.trained = self.trained or beat.step > self.resumed_step
            self.beats[rank] = beat
            self._progress_at = now

    def _where(self) -> str:
        """ "rank 1 at step 41 in evaluate, 3 others at step 42 in step" """
        places: dict[tuple[int, str], list[int]] = {}
        for rank, beat in self.beats.items():
            places.setdefault((beat.step, beat.phase.name.lower()), []).append(rank)
        words = [
            f"rank{'s' if len(ranks) > 1 else ''} {_ranges(ranks)} after step {step} in {phase}"
            for (step, phase), ranks in sorted(places.items())
        ]
        return ", ".join(words)

    # --- what it means ------------------------------------------------------------------------

    def _apply(self, event: Event, why: str) -> None:
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            return
        self.state = state
        now = time.time()
        if event in (Event.RANK_ENDED, Event.STALLED, Event.AGENT_EXITED, Event.STOP_ASKED, Event.HARD_STOP):
            self.noticed_at = self.noticed_at or now
        if event is Event.STALLED:
            self.stalled = why
        if state is State.ENDING:
            self._end_gracefully(event)
        elif state is State.KILLING:
            self.deadline = time.monotonic() + KILL_DEADLINE_S
        self._tell(lambda: self.observer.changed(self.attempt, state, why))

    def _end_gracefully(self, event: Event) -> None:
        if event is Event.STOP_ASKED:
            if self._agent_process is not None:
                processes.send_signal(self._agent_process, signal.SIGTERM)
            grace_s = self.plan.grace_s + AGENT_MARGIN_S
        elif self._ended_code == PayloadExit.STOPPED:
            grace_s = self.plan.grace_s
        else:
            grace_s = min(PEER_GRACE_S, self.plan.grace_s)
        self.deadline = time.monotonic() + grace_s

    def _kill_everything(self) -> bool:
        """SIGKILL to torchrun first, then to all that carries this run's id, and to what it left to this
        subreaper with another environment. False when nothing is left."""
        if self._agent_process is not None and self.agent.poll() is None:
            processes.send_signal(self._agent_process, signal.SIGKILL)
            try:
                self.agent.wait(timeout=1)
            except subprocess.TimeoutExpired:
                return True
        marked = processes.find_by_environment(ENV_RUN_ID, self.run_id)
        adopted = processes.descendants(os.getpid())
        left = {stat.process for stat in (*marked, *adopted)} - self._strangers
        for process in left:
            processes.send_signal(process, signal.SIGKILL)
        self._survivors = tuple(left)
        return bool(left)


def _ranges(ranks: list[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5" """
    parts: list[str] = []
    start = previous = None
    for rank in [*sorted(ranks), None]:
        if start is None:
            start = previous = rank
        elif rank is not None and previous is not None and rank == previous + 1:
            previous = rank
        else:
            parts.append(f"{start}" if start == previous else f"{start}-{previous}")
            start = previous = rank
    return ", ".join(parts)
