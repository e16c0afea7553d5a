"""`trainctl plan`: every value with its source, then what follows from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from trainctl.cli import plan
from trainctl.errors import TrainctlError
from trainctl.job.plan import Plan

CONFIG = """\
[job]
name = "tiny"
[cluster]
device = "cpu"
procs_per_node = 2
[data]
path = "corpus.txt"
[train]
lr = 0.5
threads = 1
[env]
NCCL_DEBUG = "WARN"
HF_TOKEN = "hush"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("trainctl.toml").write_text(CONFIG)
    Path("corpus.txt").write_text("text")
    return tmp_path


def run(*arguments: str) -> Result:
    app = typer.Typer()
    plan.register(app)
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, TrainctlError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def rows(text: str) -> dict[str, str]:
    """ "section.key" -> the rest of its line."""
    found, section = {}, ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.startswith("  "):
            key, _, rest = line.strip().partition(" ")
            found[f"{section}.{key}"] = " ".join(rest.split())
        elif line:
            section = line
    return found


def test_every_value_has_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCTL_TRAIN__STEPS", "7")
    shown = rows(run("--set", "train.lr=0.25").stdout)
    assert shown["job.name"] == '"tiny" trainctl.toml:2'
    assert shown["train.lr"] == "0.25 flag --set train.lr"
    assert shown["train.steps"] == "7 environment TRAINCTL_TRAIN__STEPS"
    assert shown["train.micro_batch"] == "8 default"
    assert shown["job.script"] == "- default"
    from trainctl.run.planning import build_plan

    built = build_plan(Path("trainctl.toml"))
    assert set(built.sources) <= set(shown)


def test_auto_is_shown_with_what_it_means_here() -> None:
    shown = rows(run().stdout)
    assert shown["parallel.dp"] == "auto: 2 default"
    assert shown["model.kv_heads"] == "auto: 4 default"
    assert shown["model.ffn_hidden"] == "auto: 704 default"  # 8/3 of 256 is 682.7, rounded up to 32
    assert shown["train.global_batch"] == "auto: 16 default"  # 8 sequences on each of 2 ranks
    assert shown["train.threads"] == "1 trainctl.toml:10"


def test_what_follows() -> None:
    result = run("--set", "checkpoint.save_steps=5")
    shown = rows(result.stdout)
    assert result.stdout.startswith("trainctl.toml · tiny · 2 ranks on cpu · TP 1 PP 1 CP 1 DP 2\n")
    assert shown["what follows.world"] == "1 x 2 = 2 ranks"
    assert shown["what follows.batch"] == "16 sequences a step (8 x DP 2 x 1 accumulated), 4,096 tokens"
    assert shown["what follows.save"].startswith("every 5 steps")
    assert shown["what follows.save"].endswith("as the configuration says")
    for name in ("MTBF", "one", "expected", "best", "grace", "identity", "run", "ledger"):
        assert shown[f"what follows.{name}"]
    assert result.stderr.endswith("next: trainctl preflight\n")


def test_a_layout_that_does_not_fit_is_said() -> None:
    result = run("--set", "parallel.dp=3")
    assert "does not fit" in result.stdout
    assert "next: correct [parallel]" in result.stderr


def test_json_is_the_plan_without_secrets() -> None:
    result = run("--json")
    built = Plan.model_validate(json.loads(result.stdout))
    assert built.settings.train.lr == 0.5
    assert built.settings.env == {"NCCL_DEBUG": "WARN", "HF_TOKEN": "(hidden)"}
    assert result.stderr == ""
    assert rows(run().stdout)["env.HF_TOKEN"] == "(hidden) trainctl.toml:13"


def test_verbose_says_what_a_value_means() -> None:
    assert "peak learning rate" in run("-v").stdout
    assert "peak learning rate" not in run().stdout


def test_a_bad_file_is_not_shown_in_part() -> None:
    Path("trainctl.toml").write_text(CONFIG + "[trian]\n")
    with pytest.raises(TrainctlError, match=r"trainctl.toml:14: \[trian\] is not a section"):
        run()
