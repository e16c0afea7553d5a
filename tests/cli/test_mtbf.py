"""`trainctl mtbf` as a person or a script meets it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from trainctl.cli import mtbf
from trainctl.errors import TrainctlError
from trainctl.exitcodes import ExitCode
from trainctl.ledger.store import AttemptEnd, AttemptStart, append

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `trainctl mtbf ...` in an empty directory."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    mtbf.register(app)

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(app, ["mtbf", *words])

    return invoke


def refused(result: Result) -> TrainctlError:
    assert isinstance(result.exception, TrainctlError), result.output
    assert result.exception.exit_code == ExitCode.USAGE
    return result.exception


def record(ledger: Path, number: int, at: float, *, job: str = "gpt", **end: Any) -> None:
    """One attempt of one hour that started at `at`: 10 min start-up, then steps of 5 s."""
    run_id = f"{job}-1"
    append(
        ledger,
        AttemptStart(
            run_id=run_id,
            job=job,
            attempt=number,
            time=at,
            hosts=("node01", "node02"),
            world=16,
            device="cuda",
            config_digest="c",
            identity_digest="i",
            save_steps=50,
        ),
    )
    if end:
        known = {"exit_code": 1, "first_step_at": at + 600, "saves": 10, "save_s": 30.0, "step_s": 5.0}
        known["buckets"] = {"startup": 600, "steps_kept": 2500, "steps_redone": 200, "checkpoint": 300}
        append(
            ledger,
            AttemptEnd.model_validate(
                {**known, "run_id": run_id, "job": job, "attempt": number, "time": at + 3600, **end}
            ),
        )


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Two failures, one planned stop, one start-up failure, one attempt that runs; two days old."""
    at = time.time() - 2 * 86400
    path = tmp_path / "runs" / "ledger"
    record(path, 1, at, cause="deadlock", first_step=1, last_step=500, durable_step=450)
    record(path, 2, at + 4000, cause="user.config", first_step_at=None, buckets={"startup": 3600}, saves=0)
    record(path, 3, at + 8000, cause="process.killed", first_step=451, last_step=900, durable_step=880)
    planned = {"cause": "stop.interrupt", "planned": True, "exit_code": 75}
    record(path, 4, at + 12000, first_step=881, last_step=1200, durable_step=1200, **planned)
    record(path, 5, time.time() - 60)
    return path


# Young for a save of 490 s and steps of 120 s
@pytest.mark.parametrize(("failures", "steps"), [("4h", 31), ("8h", 44), ("24h", 77), ("3d", 133)])
def test_plan_answers_by_itself(run: Run, failures: str, steps: int) -> None:
    result = run("plan", "--cost", "490s", "--mtbf", failures, "--step", "2min")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"save every {steps} steps (")


def test_plan_shows_every_formula_and_what_lies_around(run: Run) -> None:
    words = ("--cost", "490s", "--mtbf", "24h", "--step", "120s", "--restart", "10min")
    lines = run("plan", *words).stdout.splitlines()
    assert lines[0] == "save every 77 steps (2 h 34 min) · young: 2 h 33 min = 76.7 steps"
    assert "  5.0 % of the time between two saves goes into the save" in lines
    assert "  89.1 % of wall time trains something new (ETTR), restarts counted" in lines
    table = [line.split() for line in lines[lines.index("") + 2 :]]
    assert [row[0] for row in table] == ["19", "38", "58", "74", "77", "116", "154", "308"]
    assert table[3][-2:] == ["daly,", "exact"]

    values = json.loads(run("plan", *words, "--json", "--formula", "exact").stdout)
    assert values["chosen"]["steps"] == 74
    assert values["chosen"]["ettr"] == pytest.approx(0.891036, abs=1e-6)
    assert values["restart_s"] == 600
    assert [choice["steps"] for choice in values["alternatives"]] == [77, 74, 74]
    assert values["warnings"] == []


def test_plan_warns_when_no_interval_helps(run: Run) -> None:
    result = run("plan", "--cost", "1h", "--mtbf", "10min", "--step", "1s")
    assert result.exit_code == 0
    assert "warning: one save takes longer than two mean times between failures" in result.stdout
    assert "inf" not in result.stdout
    json.loads(run("plan", "--cost", "3d", "--mtbf", "1s", "--step", "1s", "--json").stdout)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("490", 490),
        ("490s", 490),
        ("8.2min", 492),
        (" 10 m ", 600),
        ("24h", 86400),
        ("3d", 259200),
        ("1W", 604800),
        ("42ms", 0.042),
        ("1e3", 1000),
        (".5h", 1800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert mtbf.parse_duration(text, "--x") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "h", "-5", "0", "12 parsecs", "nan", "inf", "1e999", "1,5h", "3d4h", "1..2"]
)
def test_what_is_no_duration_is_refused_by_name(run: Run, text: str) -> None:
    error = refused(run("plan", f"--cost={text}", "--mtbf", "24h", "--step", "120s"))
    assert error.message.startswith(f"--cost is {text!r}, expected a time")


def test_missing_option_is_a_usage_error(run: Run) -> None:
    result = run("plan", "--cost", "490s")
    assert result.exit_code == ExitCode.USAGE
    assert "--mtbf" in result.stderr


def test_nothing_recorded_yet(run: Run) -> None:
    result = run("report")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "nothing recorded in runs/ledger yet"
    assert json.loads(run("report", "--json").stdout)["jobs"] == []


def test_report(run: Run, ledger: Path) -> None:
    result = run("report")
    assert result.exit_code == 0, result.exception
    text = result.stdout
    assert text.startswith("gpt on 2 nodes · ")
    assert "2 unplanned, 1 planned stop, 1 start-up failure (counted apart)" in text
    assert "MTBF           1.2 h [" in text
    assert "95 %, too few to see a trend" in text
    assert "attempt 5 of gpt-1, 60 s old: running, or lost with its supervisor; not counted" in text
    causes = text[text.index("cause ") :].splitlines()
    assert causes[1].split()[:3] == ["deadlock", "1", "50"]
    assert causes[2].split()[:3] == ["process.killed", "1", "20"]
    assert result.stderr == ""


def test_report_shares_add_up_to_a_hundred(run: Run, ledger: Path) -> None:
    text = run("report").stdout
    rows = text[text.index("where the time went") :].splitlines()[1:]
    shares = [float(row.split(" %")[0].split()[-1]) for row in rows]
    assert rows[-1].split()[:4] == ["wall", "time", "100.0", "%"]
    assert sum(shares[:-1]) == pytest.approx(100, abs=1e-9)


def test_report_as_json(run: Run, ledger: Path) -> None:
    values = json.loads(run("report", "--ledger", str(ledger), "--json").stdout)
    (job,) = values["jobs"]
    assert job["mtbf"]["failures"] == 2
    assert job["mtbf"]["exposure_s"] == pytest.approx(3 * 3000)
    assert job["startup_failures"] == 1
    assert sum(job["buckets_s"].values()) == pytest.approx(job["wall_s"]) == pytest.approx(4 * 3600)
    assert job["goodput"] == pytest.approx(7500 / 14400)
    save = job["save"]
    assert save["now"]["steps"] == 50
    assert save["mtbf_s"] == pytest.approx(9000 / 2)
    assert save["prior_s"] == 6000 * 3600 / 2
    assert save["best"]["chosen"]["steps"] == round((2 * 30 * save["mtbf_s"]) ** 0.5 / 5)
    assert save["restart_s"] == pytest.approx((3 * 600 + 3600) / 3)
    assert values["problems"] == []


def test_report_window_and_job(run: Run, ledger: Path) -> None:
    record(ledger, 1, time.time() - 7200, job="other", first_step=1, last_step=10, durable_step=0)
    jobs = json.loads(run("report", "--last", "1d", "--json").stdout)["jobs"]
    assert [(job["job"], job["mtbf"]["failures"]) for job in jobs] == [("gpt", 0), ("other", 1)]
    assert jobs[0]["mtbf"]["mtbf_s"] is None
    only = json.loads(run("report", "--job", "other", "--json").stdout)["jobs"]
    assert [job["job"] for job in only] == ["other"]


def test_unknown_job_names_the_nearest(run: Run, ledger: Path) -> None:
    error = refused(run("report", "--job", "gtp"))
    assert error.hint == "--job gpt"
    assert "found gpt" in error.message


def test_a_tiny_ledger_has_no_infinity(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "l"
    record(path, 1, time.time() - 90)
    text = run("report", "--ledger", "l").stdout
    assert "not known: no training recorded" in text
    assert "not known: no attempt has ended" in text
    assert "no advice" in text
    record(path, 2, time.time() - 7200, exit_code=0, first_step=1, last_step=10, durable_step=10)
    text = run("report", "--ledger", "l").stdout
    assert "no interruption yet, so at least 17 min (95 % sure)" in text  # 3,000 s / 2.9957
    assert "inf" not in text
    json.loads(run("report", "--ledger", "l", "--json").stdout)


def test_torn_lines_are_said_on_stderr(run: Run, ledger: Path) -> None:
    with open(ledger / "gpt-1.jsonl", "a") as file:
        file.write('{"event": "attempt_e')
    result = run("report")
    assert result.exit_code == 0
    assert "gpt-1.jsonl:10: torn: not a whole JSON object; not counted" in result.stderr.replace("\n", "")
    assert "torn" not in result.stdout


def test_a_ledger_that_is_not_there(run: Run) -> None:
    assert "is not a directory" in refused(run("report", "--ledger", "nowhere")).message
    assert refused(run("report", "--last", "soon")).message.startswith("--last is 'soon'")


def test_the_configuration_names_ledger_job_and_todays_setting(
    run: Run, ledger: Path, tmp_path: Path
) -> None:
    ledger.rename(tmp_path / "records")
    record(
        tmp_path / "records", 1, time.time() - 7200, job="other", first_step=1, last_step=9, durable_step=0
    )
    (tmp_path / "text.txt").write_text("words\n")
    (tmp_path / "trainctl.toml").write_text(
        '[job]\nname = "gpt"\n[data]\npath = "text.txt"\n[checkpoint]\nsave_steps = 7\nformula = "exact"\n'
        '[ledger]\ndir = "records"\nprior_mtbf_h = 0.5\n'
    )
    for words in ((), ("trainctl.toml",)):
        values = json.loads(run("report", *words, "--json").stdout)
        (job,) = values["jobs"]
        assert job["job"] == "gpt"
        assert job["save"]["now"]["steps"] == 7
        assert job["save"]["best"]["chosen"]["formula"] == "exact"
        assert job["save"]["mtbf_s"] == pytest.approx((1800 + 9000) / 3)
