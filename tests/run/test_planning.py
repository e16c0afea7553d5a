"""From a file to a plan: what "auto" becomes, and from which numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainctl.errors import TrainctlError
from trainctl.host import devices
from trainctl.host.facts import Warmup
from trainctl.job.plan import Plan, read_plan
from trainctl.ledger.store import AttemptEnd, AttemptStart, append
from trainctl.run.planning import build_plan, refresh

CONFIG = """
[job]
name = "job"
[cluster]
device = "cpu"
procs_per_node = 2
[data]
path = "text.txt"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "trainctl.toml"
    path.write_text(CONFIG)
    return path


def plan(config: Path, *overrides: str, warmup: Warmup | None = None) -> Plan:
    return build_plan(config, overrides, {}, warmup)


def record(plan_: Plan, attempt: int, hours: float, cause: str, **fields) -> None:
    """One recorded attempt of `hours`, begun where the one before ended."""
    begin = (attempt - 1) * 3600.0 * 100
    end = begin + hours * 3600
    common = {"run_id": "run", "job": "job", "attempt": attempt}
    start = AttemptStart(
        **common, time=begin, begin=begin, hosts=("h",), world=2, device="cpu", config_digest="c",
        identity_digest=plan_.identity_digest, save_steps=10,
    )  # fmt: skip
    append(Path(plan_.ledger_dir), start)
    steps = {"first_step": attempt * 100, "last_step": attempt * 100 + 50, "durable_step": attempt * 100 + 40}
    append(
        Path(plan_.ledger_dir),
        AttemptEnd(
            **common, time=end, exit_code=1 if cause else 0, cause=cause, first_step_at=begin,
            failed_at=end, noticed_at=end, gone_at=end, **steps, **fields,
        ),
    )  # fmt: skip


def test_an_empty_ledger_says_what_it_assumed(config: Path) -> None:
    save = plan(config).save
    assert save.basis == "young"
    assert save.mtbf_s == 6000 * 3600
    assert "prior of one failure in 250 d, nothing recorded yet" in save.mtbf_basis
    assert "assumed" in save.cost_basis
    assert "assumed" in save.step_basis


@pytest.mark.parametrize(("mtbf_h", "steps"), [(4, 31), (8, 44), (24, 77), (72, 133)])
def test_the_published_table(config: Path, mtbf_h: int, steps: int) -> None:
    """C = 490 s and 120 s a step, Young, rounded: 35B parameters written at 1 GB/s."""
    measured = Warmup(ok=True, step_s=120.0, save_s=490.0)
    found = plan(config, f"ledger.prior_mtbf_h={mtbf_h}", "train.steps=100000", warmup=measured).save
    assert found.steps == found.best_steps == steps
    assert found.cost_basis == found.step_basis == "measured by the warm-up"


def test_recorded_failures_and_measurements_decide(config: Path) -> None:
    empty = plan(config)
    record(empty, 1, 2.0, "process.killed", step_s=2.0, save_s=4.0, saves=3)
    record(empty, 2, 4.0, "exception", step_s=3.0, save_s=6.0, saves=1)
    save = plan(config, "train.steps=100000").save
    assert save.mtbf_s == 3 * 3600  # worse than the prior, so the record alone
    assert save.mtbf_basis == "2 interruptions in 6 h"
    assert (save.cost_s, save.cost_basis) == (4.5, "mean of 4 recorded saves")
    assert (save.step_s, save.step_basis) == (3.0, "median of attempt 2")
    assert save.steps == round((2 * 4.5 * 3 * 3600) ** 0.5 / 3)
    assert 0 < save.mtbf_low_s < save.mtbf_s < save.mtbf_high_s


def test_what_was_measured_of_another_model_does_not_count(config: Path) -> None:
    record(plan(config), 1, 2.0, "exception", step_s=2.0, save_s=4.0, saves=3)
    other = plan(config, "model.hidden=512").save
    assert "assumed" in other.step_basis
    assert other.failures == 1  # the machine it ran on is the same


def test_a_configured_interval_stands_and_is_judged(config: Path) -> None:
    save = plan(config, "checkpoint.save_steps=5", warmup=Warmup(ok=True, step_s=1.0, save_s=1.0)).save
    assert (save.steps, save.basis) == (5, "config")
    assert save.overhead > save.best_overhead


def test_the_interval_is_never_longer_than_the_run(config: Path) -> None:
    assert plan(config, "train.steps=7").save.steps == 7


def test_grace_follows_the_slowest_save(config: Path) -> None:
    assert plan(config).grace_s == 10
    # a stop waits for the steps under way, then for the save
    assert plan(config, warmup=Warmup(ok=True, save_s=100.0, step_s=12.0)).grace_s == 336
    assert plan(config, "restart.grace_s=7").grace_s == 7


def test_refresh_learns_from_the_ledger_and_reads_no_file(config: Path) -> None:
    before = plan(config, "train.steps=100000")
    record(before, 1, 2.0, "process.killed", step_s=2.0, save_s=4.0, saves=3)
    config.write_text("half an ed")
    after = refresh(before)
    assert (after.save.failures, after.save.step_s) == (1, 2.0)
    assert after.grace_s == 18
    assert after.model_copy(update={"save": before.save, "grace_s": before.grace_s}) == before


def test_identity_is_what_a_checkpoint_depends_on(config: Path) -> None:
    before = plan(config)
    for harmless in ("train.steps=5", "restart.max_restarts=0", "checkpoint.keep=9", "train.eval_interval=3"):
        after = plan(config, harmless)
        assert after.identity_digest == before.identity_digest, harmless
        assert after.config_digest != before.config_digest, harmless
    for meaningful in ("model.layers=9", "train.lr=9e-4", "train.seed=9", 'data.path="other.txt"'):
        assert plan(config, meaningful).identity_digest != before.identity_digest, meaningful


@pytest.mark.parametrize(
    ("override", "ref"),
    [
        ("cluster.nodes=2", "several-nodes"),
        ("parallel.tp=2", "not-in-bundled-trainer"),
        ("model.experts=8", "not-in-bundled-trainer"),
        ("cluster.device=cuda", "no-gpu"),
    ],
)
def test_what_cannot_be_run_is_refused(
    config: Path, override: str, ref: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: False)
    with pytest.raises(TrainctlError) as caught:
        plan(config, override)
    assert caught.value.ref == ref


def test_the_bundled_trainer_needs_text(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[job]\nname = "x"\n')
    with pytest.raises(TrainctlError) as caught:
        plan(path)
    assert caught.value.ref == "no-data"


def test_paths_start_at_the_configuration_file(config: Path, tmp_path: Path) -> None:
    found = plan(config, "job.runs_dir=deep/runs")
    assert found.run_dir == str(tmp_path / "deep" / "runs" / "job")
    assert found.ledger_dir == str(tmp_path / "deep" / "runs" / "ledger")
    assert found.resolve("text.txt") == tmp_path / "text.txt"


def test_secrets_of_env_are_not_written_down(config: Path, tmp_path: Path) -> None:
    config.write_text(CONFIG + '[env]\nHF_TOKEN = "hunter2"\nNCCL_DEBUG = "WARN"\n')
    found = plan(config)
    found.write(tmp_path / "plan.json")
    assert "hunter2" not in (tmp_path / "plan.json").read_text()
    again = read_plan(tmp_path / "plan.json")
    assert again.settings.env == {"HF_TOKEN": "(hidden)", "NCCL_DEBUG": "WARN"}
    assert found.settings.env["HF_TOKEN"] == "hunter2"  # the ranks still get it


def test_usable_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: True)
    for visible, expected in ((None, 3), ("0,2", 2), ("", 0), ("-1", 0), ("0,-1,1", 1), ("0,1,2,3", 3)):
        environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        assert devices.usable_gpus(environ, tmp_path) == expected, visible
    monkeypatch.setattr(devices, "torch_has_cuda", lambda: False)
    assert devices.usable_gpus({}, tmp_path) == 0
