"""What launcher and status read while others write: tails, records, exits, locks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainctl.errors import TrainctlError
from trainctl.job.protocol import HeartbeatWriter, Phase
from trainctl.job.rundir import RunDir, write_json
from trainctl.run.exits import last_exception, read_ends, tail_lines
from trainctl.run.lock import hold, is_held
from trainctl.run.records import from_lines
from trainctl.run.status import find_runs, read_status
from trainctl.run.tails import LineTail, RecordTail


def test_a_tail_gives_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LineTail(path)
    assert tail.read() == []
    with open(path, "a") as file:
        for text, expected in (("a\nb", ["a"]), ("c\r\n", ["bc"]), ("", []), ("d\n\ne", ["d", ""])):
            file.write(text)
            file.flush()
            assert tail.read() == expected
    assert tail.rest() == ["e"]
    assert tail.rest() == []


def test_a_line_without_end_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 300_000)
    assert [len(line) for line in LineTail(path).read()] == [64 * 1024]


def test_the_newest_record_of_each_kind(tmp_path: Path) -> None:
    path = tmp_path / "records"
    tail = RecordTail(path)
    path.write_text('{"kind": "step", "step": 1}\nnoise\n{"kind": "evaluation", "loss": 2.0}\n[1]\n')
    assert set(tail.read()) == {"step", "evaluation"}
    with open(path, "a") as file:
        file.write('{"kind": "step", "step": 2}\n')
    assert tail.read()["step"]["step"] == 2


def test_records_add_up() -> None:
    records = from_lines(
        [
            {"kind": "step", "step": 1, "time": 12.0, "seconds": 2.0},
            {"kind": "step", "step": 2, "time": 13.0, "seconds": 1.0},
            {"kind": "checkpoint", "step": 2, "time": 13.5, "seconds": 0.5},
            {"kind": "checkpoint", "step": 4, "time": 16.0, "seconds": 1.5},
            {"kind": "step", "step": 3, "time": 14.0, "seconds": 0.4},
            {"kind": "evaluation", "time": 15.0, "seconds": 0.1},
            {"kind": "step", "step": "4", "time": 15.0},
            {"kind": "step", "step": 4},
            {"kind": "step", "step": 4, "time": 17.0, "seconds": 1.0, "accepted": False},
        ]
    )
    assert records.first_step_start == 10.0
    assert records.step_s == pytest.approx(0.7)  # the first step compiles and allocates
    assert records.save_s == 1.0
    assert [step for step, _, _ in records.steps] == [1, 2, 3]
    assert records.evaluations == ((15.0, 0.1),)


def test_steps_without_a_duration_take_the_time_between_them() -> None:
    lines = [{"kind": "step", "step": n, "time": 10.0 + 2 * n} for n in range(4)]
    assert [seconds for _, _, seconds in from_lines(lines).steps] == [0, 2, 2, 2]


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "Traceback (most recent call last):\n  File x\nValueError: bad thing\n",
            ("ValueError", "bad thing"),
        ),
        ("torch.OutOfMemoryError: CUDA out of memory\n", ("OutOfMemoryError", "CUDA out of memory")),
        ("ValueError: first\n\nDuring handling\nOSError: second\n", ("OSError", "second")),
        ("AssertionError\n", ("AssertionError", "")),
        ("    ValueError: indented is quoted\nError: no type\nall fine\n", ("", "")),
        ("[rank3]: KeyError: 'x'\n[W1130 12:00:00 ProcessGroup.cpp:1] late\n", ("KeyError", "'x'")),
        ("RuntimeError: two lines,\nthis is the second\n", ("RuntimeError", "two lines,")),
        ("ValueError: logged and survived\n" + "step\n" * 30, ("", "")),
        ("", ("", "")),
    ],
)
def test_the_exception_at_the_end_of_a_log(tmp_path: Path, log: str, expected: tuple[str, str]) -> None:
    path = tmp_path / "rank-0.err"
    path.write_text(log)
    assert last_exception(path) == expected
    assert last_exception(tmp_path / "absent") == ("", "")


def test_tail_lines_reads_only_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {n}\n" for n in range(100_000)))
    assert tail_lines(path, 2) == ["line 99998", "line 99999"]


def test_the_heartbeat_has_the_exception_when_nothing_else_could_be_written(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).new_attempt()
    HeartbeatWriter(attempt.heartbeat(2), 2).beat(Phase.SHUTDOWN, 8, note="OSError: [Errno 28] No space left")
    attempt.exit_status(2).write_text('{"state": "running", "pid": 1}')
    (end,) = read_ends(attempt)
    assert (end.exception, end.message) == ("OSError", "[Errno 28] No space left")
    assert end.exit_code is None


def test_torchrun_says_how_a_killed_wrapper_ended(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).new_attempt()
    attempt.exit_status(0).write_text('{"state": "running", "pid": 1}')
    attempt.exit_status(1).write_text('{"state": "exited", "pid": 2, "exit_code": 1, "ended": 5.0}')
    write_json(attempt.agent_json, {"outcome": "failed", "failures": {"0": -9, "1": 1}})
    assert [(end.exit_code, end.ended) for end in read_ends(attempt)] == [(-9, None), (1, 5.0)]


def test_the_lock_names_its_holder_and_ends_with_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "job")
    assert not is_held(run)
    code = (
        "import sys; from pathlib import Path; from trainctl.job.rundir import RunDir; "
        "from trainctl.run.lock import hold\n"
        "with hold(RunDir(Path(sys.argv[1]))): print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    assert is_held(run)
    with pytest.raises(TrainctlError) as caught, hold(run):
        pass
    assert f"pid {child.pid} on" in caught.value.message
    child.kill()
    child.communicate()
    with hold(run):
        assert is_held(run)
    assert not is_held(run)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainctlError) as caught, hold(RunDir(tmp_path / "file" / "job")):
        pass
    assert caught.value.ref == "run-dir-unwritable"


def test_status_of_a_run_without_a_launcher(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "job")
    write_json(run.run_json, {"run_id": "x"})
    (tmp_path / "not-a-run").mkdir()
    assert [found.path.name for found in find_runs(tmp_path)] == ["job"]
    assert read_status(run).state == "new"

    attempt = run.new_attempt()
    HeartbeatWriter(attempt.heartbeat(0), 0).beat(Phase.STEP, 12)
    lines = [{"kind": "step", "step": 12, "loss": 2.5, "seconds": 0.5, "tokens": 1000}]
    attempt.steps(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    status = read_status(run)
    assert (status.state, status.step, status.loss, status.tokens_per_s) == ("lost", 12, 2.5, 2000.0)
    assert status.ranks[0].pid == os.getpid()
    assert status.ranks[0].age_s < 60

    with open(attempt.steps(0), "a") as file:
        file.write('{"kind": "step", "step": 13, "loss": "nan", "seconds": "soon"}\n')
    assert (read_status(run).loss, read_status(run).step_s) == (None, None)

    for fields, state in (
        ({"exit_code": 0, "cause": ""}, "done"),
        ({"exit_code": 75, "cause": "stop.trainer", "planned": True}, "stopped"),
        ({"exit_code": 1, "cause": "exception", "planned": False, "detail": "ValueError"}, "failed"),
    ):
        write_json(attempt.attempt_json, fields)
        assert read_status(run).state == state
    assert "ValueError" in read_status(run).ended
    with hold(run):
        assert read_status(run).state == "running"
