"""Another trainer under trainctl, broken in every way: the true exit, the cause, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from trainctl.exitcodes import ExitCode
from trainctl.host import processes

pytestmark = pytest.mark.e2e

TRAINER = """
import os, signal, subprocess, sys, time
from trainctl import Reporter

how = sys.argv[1]
with Reporter() as reporter:
    for step in range(1, 2000 if how == "endless" else 30):
        time.sleep(0.02)
        reporter.step(step, loss=1 / step, seconds=0.02)
        if step != 5 or reporter.rank != 1:
            continue
        if how == "raise":
            raise ValueError(f"bad batch in shard {os.getpid()}")
        if how == "exit7":
            sys.exit(7)
        if how == "segfault":
            import ctypes
            ctypes.string_at(0)
        if how == "os_exit":
            os._exit(3)
        if how == "orphan":
            subprocess.Popen(["sleep", "600"], start_new_session=True)
            os._exit(5)
        if how == "hang":
            time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "cause", "exit_code", "says"),
    [
        ("raise", "exception", 1, "ValueError: bad batch"),
        ("exit7", "exit", 7, "exit code 7"),
        ("segfault", "process.crashed", -11, "SIGSEGV"),
        ("os_exit", "exit", 3, "exit code 3"),
        ("orphan", "exit", 5, "exit code 5"),
    ],
)
def test_one_rank_breaks(script, how: str, cause: str, exit_code: int, says: str) -> None:
    job = script(TRAINER, how)
    code, output = job.launch()
    assert code == ExitCode.BUDGET, output  # one restart allowed, and it met the same end
    ends = [attempt.end for attempt in job.attempts]
    assert [(end.cause, end.exit_code, end.rank) for end in ends] == [(cause, exit_code, 1)] * 2
    assert ends[0].fingerprint == ends[1].fingerprint
    assert 5 in job.losses(1, rank=1)  # what it had done is on record
    assert says in output
    assert "rank-1.err" in output
    assert not job.leftovers()
    # what torchrun flattens to 1: how every rank ended, and its first exception
    ranks = json.loads(job.run.attempt(1).attempt_json.read_bytes())["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert ranks[1]["exit_code"] == exit_code
    assert ranks[1]["exception"] == ("ValueError" if how == "raise" else "")
    # the logs of both attempts are there
    assert [attempt.stderr(1).exists() for attempt in job.run.attempts()] == [True, True]


def test_a_segfault_leaves_its_python_stack(script) -> None:
    job = script(TRAINER, "segfault", extra="")
    _, output = job.launch("--set", "restart.max_restarts=0")
    assert "Fatal Python error: Segmentation fault" in output
    assert "trainer.py" in output


def test_all_is_well(script) -> None:
    job = script(TRAINER, "well")
    code, output = job.launch()
    assert code == ExitCode.DONE, output
    assert job.attempts[0].end.last_step == 29


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import no_such_module\n", "no_such_module"),
        ("prin(1)\n", "NameError"),
    ],
)
def test_a_program_that_cannot_run_is_not_restarted(script, source: str, says: str) -> None:
    job = script(source)
    code, output = job.launch()
    assert code == ExitCode.POINTLESS, output
    assert [attempt.end.cause for attempt in job.attempts] == ["user.code"]
    assert says in output


def test_a_hang_is_ended_and_restarted(script) -> None:
    job = script(TRAINER, "hang", extra="[watchdog]\nstall_s = 2\n")
    code, output = job.launch()
    assert code == ExitCode.BUDGET, output
    assert [attempt.end.cause for attempt in job.attempts] == ["deadlock", "deadlock"]
    assert job.attempts[0].end.rank == 1
    assert job.attempts[0].end.buckets["detection"] >= 2


STUBBORN = """
import signal, time
from trainctl import Reporter
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Reporter() as reporter:
    for step in range(1, 100000):
        time.sleep(0.02)
        reporter.step(step, seconds=0.02)
"""


def test_the_second_ctrl_c_is_hard(script) -> None:
    """Ranks that ignore TERM get the grace after the first one, and none after the second."""
    job = script(STUBBORN, extra="[watchdog]\nstall_s = 500\n")
    launch = job.start("--set", "restart.grace_s=300")
    job.wait_for_step(3)
    launch.signal(signal.SIGINT)
    job.wait_for(lambda: "stopping:" in launch.output, "the stop was accepted")
    accepted = time.monotonic()
    job.wait_for(lambda: time.monotonic() > accepted + 1, "a second Ctrl-C that is no bouncing key")
    launch.signal(signal.SIGINT)
    assert launch.wait(30) == ExitCode.INTERRUPTED, launch.output
    assert job.attempts[0].end.cause == "stop.interrupt"
    assert not job.leftovers()


def test_term_then_kill_after_the_grace(script) -> None:
    job = script(STUBBORN)
    launch = job.start("--set", "restart.grace_s=1")
    job.wait_for_step(3)
    launch.signal(signal.SIGTERM)
    assert launch.wait(60) == ExitCode.REQUEUE, launch.output
    assert job.attempts[0].end.cause == "stop.terminate"


def test_a_killed_supervisor_leaves_no_process(script) -> None:
    """Also when the ranks ignore TERM: torchrun kills them after its grace and goes itself."""
    job = script(STUBBORN)
    launch = job.start("--set", "restart.grace_s=1")
    job.wait_for_step(3)
    assert job.leftovers()
    launch.process.kill()
    deadline = time.monotonic() + 30
    while job.leftovers():
        assert time.monotonic() < deadline, job.leftovers()
        time.sleep(0.05)


def test_a_reader_that_leaves_does_not_end_the_run(script) -> None:
    """`trainctl launch | head -1`: the run goes on to its end, and its exit code is the run's."""
    job = script(TRAINER, "well")
    process = subprocess.Popen(
        [sys.executable, "-m", "trainctl", "launch", str(job.config), "--quick"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == ExitCode.DONE
    assert job.attempts[0].end.last_step == 29


BROKEN = """
import sys
from pathlib import Path
from trainctl.run import supervise
from trainctl.run.launch import Options, launch

class Observer:
    def tick(self, attempt, state, beats):
        if sys.argv[2] == "view" and len(beats) == 2:
            raise RuntimeError("the view broke")
    def __getattr__(self, name):
        return lambda *_: None

if sys.argv[2] == "supervisor":
    def broken(self):
        if self.trained:
            raise RuntimeError("the supervisor broke")
        return events(self)
    events, supervise.Supervisor._events = supervise.Supervisor._events, broken

sys.exit(launch(Path(sys.argv[1]), [], Options(quick=True), Observer()))
"""


def run_broken(job, what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BROKEN, str(job.config), what]
    return subprocess.run(command, capture_output=True, text=True, timeout=90)


def test_a_view_that_breaks_does_not_end_training(script) -> None:
    job = script(TRAINER, "well")
    assert run_broken(job, "view").returncode == ExitCode.DONE
    assert "the view broke" in (job.run.attempt(1).logs / "launcher.log").read_text()


def test_a_bug_in_the_supervisor_lets_ranks_save_and_leaves_no_process(script) -> None:
    source = """
import signal, sys, time
from trainctl import Reporter
def leave(*_):
    time.sleep(0.5)  # the save
    open("saved", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
with Reporter() as reporter:
    for step in range(1, 100000):
        time.sleep(0.02)
        reporter.step(step, seconds=0.02)
"""
    job = script(source, ranks=1)
    command = [sys.executable, "-c", BROKEN, str(job.config), "supervisor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=job.directory)
    assert "the supervisor broke" in done.stderr
    assert (job.directory / "saved").exists()
    assert not job.leftovers()


def test_what_hides_its_environment_is_ended_too(script) -> None:
    """An orphan in a session of its own with a cleared environment: nothing names it but its parent."""
    source = """
import subprocess, sys, time
from trainctl import Reporter
with Reporter() as reporter:
    child = subprocess.Popen(["sleep", "601"], env={}, start_new_session=True)
    print(child.pid, flush=True)
    for step in range(1, 100000):
        time.sleep(0.02)
        reporter.step(step, seconds=0.02)
"""
    job = script(source, ranks=1)
    launch = job.start()
    job.wait_for_step(3)
    orphan = processes.identify(int(job.run.attempt(1).stdout(0).read_text()))
    assert orphan is not None
    try:
        os.kill(job.agent_pid(), signal.SIGKILL)
        job.wait_for_attempt(2)
        assert not processes.is_alive(orphan)
    finally:
        processes.send_signal(orphan, signal.SIGKILL)  # nothing else would find it when this fails
    launch.signal(signal.SIGTERM)
    assert launch.wait() == ExitCode.REQUEUE


def test_checkpoints_of_another_trainer_are_not_touched(script) -> None:
    source = """
import os, sys
from pathlib import Path
from trainctl import Reporter
place = Path(os.environ["TRAINCTL_RUN_DIR"], "checkpoints", "step-00000010")
with Reporter() as reporter:
    place.mkdir(parents=True, exist_ok=True)
    (place / "weights").write_text("mine")
    reporter.step(10, seconds=0.01)
    sys.exit(int(sys.argv[1]))
"""
    job = script(source, "7", ranks=1)
    assert job.launch()[0] == ExitCode.BUDGET
    assert (job.run.checkpoint(10) / "weights").read_text() == "mine"


def test_a_trainer_that_gets_further_every_time_makes_progress(script) -> None:
    """It resumes itself; trainctl sees no checkpoints and believes its steps."""
    source = """
import os
from pathlib import Path
from trainctl import Reporter
mark = Path(os.environ["TRAINCTL_RUN_DIR"], "mark")
first = int(mark.read_text()) if mark.exists() else 0
with Reporter() as reporter:
    for step in range(first + 1, 51):
        reporter.step(step, seconds=0.01)
        mark.write_text(str(step))
        if step % 10 == 0 and step < 50:
            os.kill(os.getpid(), 9)
"""
    job = script(source, ranks=1)
    code, output = job.launch("--set", "restart.max_restarts=9")
    assert code == ExitCode.DONE, output
    assert [attempt.end.cause for attempt in job.attempts] == ["process.killed"] * 4 + [""]
    assert all(attempt.end.buckets["steps_redone"] == 0 for attempt in job.attempts)


def test_a_configuration_edited_meanwhile_is_for_the_next_launch(script) -> None:
    job = script(TRAINER, "os_exit")
    launch = job.start()
    job.wait_for_step(1)
    job.config.write_text('[job]\nname = "next-experiment"\nhalf an ed')
    assert launch.wait() == ExitCode.BUDGET, launch.output
    assert len(job.run.attempts()) == 2


def test_two_hangups_at_once_are_one_request(script) -> None:
    """A terminal that closes may send several: only Ctrl-C asks twice."""
    source = """
import signal, sys, time
from trainctl import Reporter
def leave(*_):
    time.sleep(1)
    open("saved", "w").close()
    sys.exit(1)  # trainers leave with all kinds of codes
signal.signal(signal.SIGTERM, leave)
with Reporter() as reporter:
    for step in range(1, 100000):
        time.sleep(0.02)
        reporter.step(step, seconds=0.02)
"""
    job = script(source, ranks=1)
    launch = job.start()
    job.wait_for_step(3)
    launch.signal(signal.SIGHUP)
    job.wait_for(lambda: "stopping:" in launch.output, "the stop was accepted")
    launch.signal(signal.SIGHUP)
    launch.signal(signal.SIGTERM)
    assert launch.wait() == ExitCode.REQUEUE, launch.output
    end = job.attempts[0].end
    assert (end.cause, end.planned, end.exit_code) == ("stop.terminate", True, 1)


def test_a_stop_request_is_for_one_attempt(script) -> None:
    source = """
import sys, time
from trainctl import Reporter
with Reporter() as reporter:
    for step in range(1, 60):
        time.sleep(0.05)
        reporter.step(step, seconds=0.05)
        if reporter.stop_requested():
            reporter.verdict(75, f"stopped on request at step {step}")
            sys.exit(75)
"""
    job = script(source, ranks=1)
    launch = job.start()
    job.wait_for_step(2)
    job.run.stop_request.parent.mkdir(exist_ok=True)
    job.run.stop_request.touch()
    assert launch.wait() == ExitCode.REQUEUE, launch.output
    assert job.attempts[0].end.cause == "stop.trainer"
    assert "stopped on request" in job.attempts[0].end.detail
    assert job.launch()[0] == ExitCode.DONE


def test_only_its_own_processes_are_ended(script) -> None:
    """A look-alike with another run's id survives everything the launch does."""
    bystander = subprocess.Popen(
        ["sleep", "600"],
        env={**os.environ, "TRAINCTL_RUN_ID": "somebody-elses-run", "TRAINCTL_RUN_DIR": "/elsewhere"},
    )
    try:
        job = script(TRAINER, "os_exit")
        assert job.launch()[0] == ExitCode.BUDGET
        assert bystander.poll() is None
        assert processes.identify(bystander.pid) is not None
    finally:
        bystander.kill()
        bystander.wait()


def test_arguments_are_filled_in(script) -> None:
    source = "import sys; print('|'.join(sys.argv[1:]))"
    job = script(source, "--every={save_steps}", "{run_dir}", "try {attempt}", "{other}")
    assert job.launch()[0] == ExitCode.DONE
    line = job.run.attempt(1).stdout(0).read_text().strip()
    every, run_dir, attempt, other = line.split("|")
    assert every.startswith("--every=")
    assert int(every.removeprefix("--every=")) >= 1
    assert (run_dir, attempt, other) == (str(job.run.path), "try 1", "{other}")
