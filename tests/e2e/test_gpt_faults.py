"""The bundled trainer under trainctl: killed, stopped, damaged. It comes back, and the books are right."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainctl.exitcodes import ExitCode
from trainctl.job.manifest import Manifest, newest_verified, verify
from trainctl.ledger.goodput import Bucket

pytestmark = pytest.mark.e2e


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def assert_books_are_right(job, causes: list[str]) -> None:
    """One closed entry an attempt, with these causes; every second of each is in one bucket."""
    ends = [attempt.end for attempt in job.attempts]
    assert None not in ends
    assert [end.cause for end in ends] == causes
    for attempt in job.attempts:
        wall = attempt.end.time - attempt.began
        assert sum(attempt.end.buckets.values()) == pytest.approx(wall, abs=1e-3)
        assert set(attempt.end.buckets) == {bucket.value for bucket in Bucket}
    starts = [attempt.start for attempt in job.attempts]
    assert [start.attempt for start in starts] == list(range(1, len(starts) + 1))
    for before, start in zip(ends, starts[1:], strict=False):
        assert start.resumed_step == before.durable_step  # the last durable step is not lost


def assert_finished(job, steps: int) -> None:
    found, rejected = newest_verified(job.run.checkpoints)
    assert not rejected
    assert found is not None
    assert found[1].step == steps


def test_a_whole_run(gpt) -> None:
    job = gpt(steps=20)
    code, output = job.launch()
    assert code == ExitCode.DONE, output
    assert_finished(job, 20)
    assert_books_are_right(job, [""])
    assert "done: step 20" in output
    assert sorted(job.losses(1)) == list(range(1, 21))

    again, output = job.launch()
    assert again == ExitCode.DONE
    assert "nothing to do" in output
    assert len(job.attempts) == 1


def test_a_killed_rank(gpt) -> None:
    job = gpt(steps=400)
    launch = job.start()
    job.wait_for_checkpoint(10)
    kill(job.pid(1))
    assert launch.wait() == ExitCode.DONE, launch.output
    assert_books_are_right(job, ["process.killed", ""])
    assert job.attempts[0].end.rank == 1
    assert job.attempts[0].end.durable_step >= 10
    assert "a rank was killed: SIGKILL · " in launch.output
    assert_finished(job, 400)


def test_killed_torchrun(gpt) -> None:
    job = gpt(steps=400)
    launch = job.start()
    job.wait_for_checkpoint(10)
    kill(job.agent_pid())
    assert launch.wait() == ExitCode.DONE, launch.output
    assert_books_are_right(job, ["launcher.torchrun", ""])


def test_killed_supervisor(gpt) -> None:
    """Nothing goes on without it; the next launch closes the attempt and resumes what was saved last."""
    job = gpt(steps=3000, save_steps=20)
    launch = job.start()
    job.wait_for_checkpoint(20)
    kill(launch.process.pid)
    launch.wait()
    assert job.attempts[0].end is None
    job.config.write_text(job.config.read_text().replace("steps = 3000", "steps = 3001"))

    second = job.start()
    job.wait_for_attempt(2)
    job.wait_for_step(job.attempts[1].start.resumed_step + 1)
    second.signal(signal.SIGTERM)
    assert second.wait() == ExitCode.REQUEUE, second.output
    assert_books_are_right(job, ["launcher.supervisor", "stop.terminate"])
    assert job.attempts[0].end.reconstructed
    assert job.attempts[1].start.resumed_step >= 20
    assert "left open" in second.output


@pytest.mark.parametrize(
    ("number", "expected", "cause"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED, "stop.interrupt"),
        (signal.SIGTERM, ExitCode.REQUEUE, "stop.terminate"),
    ],
)
def test_a_stop_on_request_saves(gpt, number: signal.Signals, expected: int, cause: str) -> None:
    job = gpt(steps=5000, save_steps=4000)
    launch = job.start()
    job.wait_for_step(5)
    launch.signal(number)
    assert launch.wait() == expected, launch.output
    end = job.attempts[0].end
    assert end.cause == cause
    assert end.planned
    assert end.durable_step == end.last_step > 0
    assert end.buckets["steps_redone"] == 0

    job.config.write_text(job.config.read_text().replace("steps = 5000", f"steps = {end.last_step + 10}"))
    code, output = job.launch()
    assert code == ExitCode.DONE, output
    assert f"from step {end.last_step}" in output.replace(",", "")
    assert job.attempts[1].start.resumed_step == end.last_step


def test_damaged_checkpoints_are_passed_over_aloud(gpt) -> None:
    job = gpt(steps=60, save_steps=10)
    assert job.launch()[0] == ExitCode.DONE
    kept = [step for step, _ in job.run.checkpoint_dirs()]
    assert kept == [60, 50, 40]
    manifest = job.run.checkpoint(60) / "MANIFEST.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    found = verify(job.run.checkpoint(50))
    assert isinstance(found, Manifest)
    shard = job.run.checkpoint(50) / max(found.files, key=lambda name: found.files[name][0])
    with open(shard, "r+b") as file:
        file.truncate(shard.stat().st_size - 1)

    code, output = job.launch()
    assert code == ExitCode.DONE, output
    assert "step-00000060: the manifest is torn" in output
    assert "step-00000050" in output
    assert "from step 40" in output
    assert job.attempts[1].start.resumed_step == 40
    assert_finished(job, 60)
    aside = [path.name for path in job.run.checkpoints.iterdir() if path.name.startswith("rejected-")]
    assert sorted(aside) == ["rejected-step-00000050-1", "rejected-step-00000060-1"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_and_resumed_is_bit_for_bit_the_straight_run(gpt, ranks: int) -> None:
    straight, broken = gpt(steps=80, ranks=ranks), gpt(steps=80, ranks=ranks)
    assert straight.launch()[0] == ExitCode.DONE
    launch = broken.start()
    broken.wait_for_checkpoint(10)
    kill(broken.pid(ranks - 1))
    assert launch.wait() == ExitCode.DONE, launch.output
    assert len(broken.attempts) == 2
    expected = straight.losses(1)
    resumed = broken.attempts[1].start.resumed_step
    assert broken.losses(2) == {step: loss for step, loss in expected.items() if step > resumed}
    assert all(math.isfinite(loss) for loss in expected.values())
    shards = [
        {name: digest for name, (_, digest) in manifest_of(job).files.items() if name.endswith(".distcp")}
        for job in (straight, broken)
    ]
    assert shards[0] == shards[1]


def manifest_of(job) -> Manifest:
    found, _ = newest_verified(job.run.checkpoints)
    assert found is not None
    return found[1]


def test_a_second_launcher_is_refused(gpt) -> None:
    job = gpt(steps=5000)
    first = job.start()
    job.wait_for_step(1)
    code, output = job.launch()
    assert code == ExitCode.USAGE
    assert f"already being run by pid {first.process.pid}" in output
    first.signal(signal.SIGTERM)
    assert first.wait() == ExitCode.REQUEUE


def test_another_configuration_is_refused_and_fresh_keeps_the_old_run(gpt) -> None:
    job = gpt(steps=10)
    assert job.launch()[0] == ExitCode.DONE
    job.config.write_text(job.config.read_text().replace("hidden = 32", "hidden = 64"))
    code, output = job.launch()
    assert code == ExitCode.USAGE
    assert "model.hidden: 32 in the run, 64 now" in output
    code, output = job.launch("--fresh")
    assert code == ExitCode.DONE, output
    old = job.run.path.with_name("gpt.old-1")
    assert (old / "checkpoints" / "step-00000010" / "MANIFEST.json").exists()
    assert job.attempts[1].start.resumed_step == 0


def test_a_busy_default_port_does_not_matter(gpt, busy_port) -> None:
    """29500 is torchrun's own default; somebody always has it."""
    busy_port(29500)
    code, output = gpt(steps=5).launch()
    assert code == ExitCode.DONE, output


def test_a_busy_configured_port_is_said_before_anything_starts(gpt, busy_port) -> None:
    port = busy_port(0)
    job = gpt(steps=5)
    code, output = job.launch("--set", f"cluster.rendezvous_port={port}")
    assert code == ExitCode.PREFLIGHT
    assert str(port) in output
    assert not job.attempts


@pytest.fixture
def busy_port():
    import socket

    listeners = []

    def take(port: int) -> int:
        listener = socket.socket()
        listeners.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("0.0.0.0", port))
        except OSError:
            return port  # somebody else has it already: just as busy
        listener.listen()
        return int(listener.getsockname()[1])

    yield take
    for listener in listeners:
        listener.close()


@pytest.fixture
def small_disk(tmp_path: Path):
    """Mounts a tmpfs of its own; only root can, and it is unmounted whatever happens."""
    mounted = []

    def mount(size: str) -> Path:
        place = tmp_path / "disk"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "trainctl-test", str(place)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"mounting needs root: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def test_a_full_disk(gpt, small_disk, jobs) -> None:
    """The failed save is named, the newest checkpoint stays, and with space again the run goes on."""
    disk = small_disk("16m")
    job = gpt(steps=4000, save_steps=20, directory=disk)
    launch = job.start()
    job.wait_for_checkpoint(20)
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    assert launch.wait() == ExitCode.POINTLESS, launch.output
    assert "no space left" in launch.output
    found, _ = newest_verified(job.run.checkpoints)
    assert found is not None
    assert found[1].step >= 20

    filler.unlink()
    job.config.write_text(job.config.read_text().replace("steps = 4000", f"steps = {found[1].step + 30}"))
    code, output = job.launch()
    assert code == ExitCode.DONE, output
    assert job.attempts[0].end.cause == "storage.full"
    assert job.attempts[1].start.resumed_step == found[1].step


def test_a_read_only_run_directory(gpt, small_disk) -> None:
    disk = small_disk("16m")
    job = gpt(steps=10, directory=disk)
    assert job.launch()[0] == ExitCode.DONE
    job.config.write_text(job.config.read_text().replace("steps = 10", "steps = 20"))
    logs = job.directory.parent / "elsewhere.log"
    remount(disk, "ro")
    job.directory = disk
    done = subprocess.run(
        [sys.executable, "-m", "trainctl", "launch", str(job.config), "--quick"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    logs.write_text(done.stdout + done.stderr)
    assert done.returncode == ExitCode.PREFLIGHT, logs.read_text()
    assert "ead-only" in logs.read_text()
    assert len(job.attempts) == 1
