"""`trainctl preflight` on this machine, with real configurations, as one process would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from trainctl.cli.app import app
from trainctl.errors import TrainctlError

CONFIG = """
[job]
name = "small"

[cluster]
procs_per_node = 2
device = "cpu"

[model]
layers = 1
hidden = 32
heads = 2
seq_len = 32

[data]
path = "text"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration that is ready to launch, in the working directory."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 2000)
    (tmp_path / "trainctl.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("NCCL_", "TORCH_", "GLOO_", "TP_", "TRAINCTL_")):
            monkeypatch.delenv(name)
    return tmp_path / "trainctl.toml"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["preflight", *arguments])


def test_a_sound_configuration_is_ready(config: Path) -> None:
    result = run("--quick")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "trainctl.toml · small · 1 node x 2 CPU ranks · TP 1 PP 1 CP 1 DP 2"
    numbers = [line.split()[0] for line in lines[2:16]]
    assert numbers == [str(item) for item in range(1, 15)]
    assert "skip    --quick" in lines[6]
    assert "ready" in lines[-2]
    assert lines[-1] == "next: trainctl launch"
    assert not (config.parent / "runs").exists()  # looking leaves nothing behind


@pytest.mark.parametrize("output", ["text", "json", "short", "junit"])
def test_the_exit_code_is_the_same_in_every_format(output: str, config: Path) -> None:
    assert run("--quick", "--format", output).exit_code == 0
    failing = run("--quick", "--format", output, "--set", "train.global_batch=7")
    assert failing.exit_code == 3
    assert "TC603" in failing.stdout


def test_json_and_junit_are_whole_documents(config: Path) -> None:
    content = json.loads(run("--quick", "--format", "json").stdout)
    assert content["ok"] is True
    assert "facts" not in content
    verbose = json.loads(run("--quick", "--format", "json", "-v").stdout)
    assert verbose["facts"][0]["warmup_skipped"] == "--quick"
    suite = ElementTree.fromstring(run("--quick", "--format", "junit").stdout)
    assert suite.get("tests") == "15"


def test_only_judges_what_is_asked_for(config: Path) -> None:
    result = run("--only", "6, logs", "--format", "short")
    assert result.stdout == "2 items, 2 pass · ready\n"


def test_variables_of_the_shell_and_of_the_file_are_seen(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "abc")
    assert 'TORCH_FR_BUFFER_SIZE="abc" (environment)' in run("--only", "2").stdout
    config.write_text(CONFIG + '\n[env]\nTORCH_FR_BUFFER_SIZE = "2000"\nTORCH_FR_CPP_STACK = "on"\n')
    result = run("--only", "2")
    assert result.exit_code == 3
    assert 'TORCH_FR_CPP_STACK="on" ([env])' in result.stdout
    assert "TORCH_FR_BUFFER_SIZE is abc in environment, ranks get 2000" in result.stdout


def test_facts_are_recorded_and_judged_elsewhere(config: Path) -> None:
    recorded = config.parent / "facts.json"
    collected = run("--collect", str(recorded))
    assert collected.exit_code == 0
    assert collected.stdout == ""
    (node,) = json.loads(recorded.read_text())
    node["storage"]["value"]["places"][0]["error"] = "Read-only file system"
    node["host"] = "node77"
    other = config.parent / "other.json"
    other.write_text(json.dumps([node]))
    result = run("--facts", str(recorded), "--facts", str(other))
    assert result.exit_code == 3
    assert "node77" in result.stdout
    assert "Read-only file system · TC1001" in result.stdout


@pytest.mark.parametrize("content", ["not json", "[]", "[3]", '{"facts": [{"host": "a"}]}', "7"])
def test_a_file_without_facts_is_refused(content: str, config: Path) -> None:
    (config.parent / "facts.json").write_text(content)
    result = run("--facts", "facts.json")
    assert isinstance(result.exception, TrainctlError)
    assert result.exception.ref == "facts-unreadable"


def test_facts_of_a_newer_version_are_refused(config: Path) -> None:
    run("--collect", "facts.json")
    (node,) = json.loads(Path("facts.json").read_text())
    Path("facts.json").write_text(json.dumps([node | {"version": 99}]))
    result = run("--facts", "facts.json")
    assert "version 99" in str(result.exception)


def test_list_and_explain_need_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = run("--list").stdout
    assert "1 drain: " in listed
    assert "health: " in listed
    assert "TC1204" in listed
    explained = run("--explain", "tc103").stdout
    assert explained.startswith("TC103 (drain, fail)\n")
    assert "\ndo: " in explained
    wrong = run("--explain", "TC0")
    assert isinstance(wrong.exception, TrainctlError)
    assert wrong.exception.ref == "no-such-code"


def test_a_run_directory_that_cannot_be_made_is_not_ready(config: Path) -> None:
    result = run("--quick", "--set", "job.runs_dir=/proc/runs")  # nobody makes files there
    assert result.exit_code == 3
    assert "TC1001" in result.stdout
    assert "TC1002" in result.stdout


@pytest.mark.e2e
def test_the_warm_up_measures_and_leaves_nothing(config: Path) -> None:
    """In a process of its own: the warm-up starts torchrun."""
    command = [sys.executable, "-m", "trainctl", "preflight", "--format", "json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=config.parent)
    assert result.returncode == 0, result.stdout + result.stderr
    found = {finding["item"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert found[5]["status"] == "pass"
    assert "a step" in found[5]["summary"]
    assert "measured by the warm-up" in found[11]["summary"]
    assert [path.name for path in (config.parent / "runs").iterdir()] in ([".data"], [])
