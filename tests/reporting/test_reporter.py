"""`Reporter`, as another trainer uses it: records, heartbeats, the first exception, and never a burden."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainctl import Reporter
from trainctl.job.protocol import ENV_ATTEMPT, ENV_RESUME, ENV_RUN_DIR, Phase, read_heartbeat
from trainctl.job.rundir import AttemptDir, RunDir, read_json, read_json_lines


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptDir:
    attempt = RunDir(tmp_path / "run").new_attempt()
    monkeypatch.setenv(ENV_RUN_DIR, str(tmp_path / "run"))
    monkeypatch.setenv(ENV_ATTEMPT, "1")
    monkeypatch.setenv(ENV_RESUME, "")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    return attempt


def test_a_no_op_without_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_RUN_DIR, raising=False)
    monkeypatch.chdir(tmp_path)
    with Reporter() as reporter:
        reporter.phase(Phase.STEP)
        reporter.step(1, loss=2.0)
        reporter.verdict(75, "stopped")
        assert not reporter.active
        assert not reporter.stop_requested()
    assert list(tmp_path.iterdir()) == []


def test_records_and_heartbeat(attempt: AttemptDir) -> None:
    with Reporter() as reporter:
        assert reporter.active
        assert (reporter.rank, reporter.world, reporter.resume_from) == (1, 2, None)
        reporter.step(7, loss=2.5, sample_ids=[3, 4])
        reporter.phase(Phase.CHECKPOINT)
        beat = read_heartbeat(attempt.heartbeat(1))
        assert beat is not None
        assert (beat.step, beat.phase) == (7, Phase.CHECKPOINT)
        reporter.record("checkpoint", step=7, seconds=0.5)
    lines = list(read_json_lines(attempt.steps(1)))
    assert [line["kind"] for line in lines] == ["step", "checkpoint"]
    assert lines[0] | {"time": 0, "host": ""} == {
        "kind": "step", "time": 0, "rank": 1, "host": "", "step": 7, "loss": 2.5, "sample_ids": [3, 4],
    }  # fmt: skip
    beat = read_heartbeat(attempt.heartbeat(1))
    assert beat is not None
    assert beat.phase is Phase.DONE


def test_the_first_exception_stands(attempt: AttemptDir) -> None:
    def train() -> None:
        with Reporter() as reporter:
            try:
                raise ValueError("the root")
            except ValueError as error:
                reporter.exception(error)
            raise OSError("the clean-up failed too")

    with pytest.raises(OSError, match="clean-up"):
        train()
    report = read_json(attempt.exit_report(1))
    assert report is not None
    assert (report["exception"], report["message"], report["rank"]) == ("ValueError", "the root", 1)
    assert any("the root" in line for line in report["traceback"])
    beat = read_heartbeat(attempt.heartbeat(1))
    assert beat is not None
    assert beat.note == "ValueError: the root"


@pytest.mark.parametrize("code", [0, 7])
def test_sys_exit_is_no_exception(attempt: AttemptDir, code: int) -> None:
    with pytest.raises(SystemExit), Reporter():
        sys.exit(code)
    assert not attempt.exit_report(1).exists()


def test_a_stop_request(attempt: AttemptDir, tmp_path: Path) -> None:
    with Reporter() as reporter:
        assert not reporter.stop_requested()
        request = RunDir(tmp_path / "run").stop_request
        request.parent.mkdir()
        request.touch()
        assert reporter.stop_requested()


def test_a_directory_that_went_away_does_not_end_training(
    attempt: AttemptDir, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    shutil.rmtree(attempt.path)
    attempt.path.touch()
    with Reporter() as reporter:
        reporter.step(1, loss=1.0)
        reporter.verdict(75, "x")
    assert "no records of rank 1" in capsys.readouterr().err


def test_not_a_number_is_still_json(attempt: AttemptDir) -> None:
    with Reporter() as reporter:
        reporter.step(1, loss=float("nan"), grad_norm=float("inf"), lr=1e-3)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    line = json.loads(attempt.steps(1).read_bytes(), parse_constant=refuse)
    assert (line["loss"], line["grad_norm"], line["lr"]) == ("nan", "inf", 1e-3)


def test_what_json_cannot_say_does_not_end_training(attempt: AttemptDir) -> None:
    class Tensor:
        def __float__(self) -> float:
            return 1.5

    with Reporter() as reporter:
        reporter.step(1, loss=Tensor(), phases={"data": float("nan")}, sample_ids=(3, 4), note={1})
    (line,) = read_json_lines(attempt.steps(1))
    assert (line["loss"], line["phases"], line["sample_ids"], line["note"]) == (
        1.5, {"data": "nan"}, [3, 4], "{1}",
    )  # fmt: skip


def test_importing_it_is_cheap() -> None:
    """Other people's trainers import it: nothing beyond the standard library may come along."""
    code = "import sys; before = set(sys.modules); import trainctl; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    roots = {name.split(".")[0] for name in done.stdout.split()}
    foreign = roots - set(sys.stdlib_module_names) - {"trainctl"}
    assert not foreign, json.dumps(sorted(foreign))
