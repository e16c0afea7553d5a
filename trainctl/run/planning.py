"""From settings to a plan: everything "auto" is resolved from this machine and from the ledger."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainctl.errors import TrainctlError
from trainctl.host.devices import cpu_count, usable_gpus
from trainctl.job.config import load
from trainctl.job.layout import Layout, resolve_layout
from trainctl.job.plan import ASSUMED, Plan, SaveInterval, digest, identity_values, resolve_global_batch
from trainctl.job.settings import Settings
from trainctl.job.units import human_seconds
from trainctl.ledger import interval, mtbf
from trainctl.ledger.incidents import History, history
from trainctl.ledger.store import Attempt, read_ledger

if TYPE_CHECKING:
    from trainctl.host.facts import Warmup

# Stated in the plan whenever they are used, and gone as soon as anything was measured.
ASSUMED_STEP_S = 1.0
ASSUMED_WRITE_BYTES_PER_S = 500e6
ASSUMED_SAVE_S = 30.0
MIN_GRACE_S = 10.0
GRACE_FACTOR = 3.0  # times the slowest save and a step: a save on a loaded file system is not an average one
_RECENT = 5  # attempts whose measurements count: hardware and model change


def build_plan(
    config_path: Path,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    warmup: Warmup | None = None,
    gpus: int | None = None,
) -> Plan:
    """Resolve a configuration file. Raises TrainctlError for whatever it cannot mean.

    warmup: measurements of the warm-up; used where the ledger has none of this job. gpus: of the
    machine that is meant, where that is not this one.
    """
    loaded = load(config_path, environ, overrides)
    settings = loaded.settings
    usable = usable_gpus({**environ, **settings.env}) if gpus is None else gpus
    device = _device(settings, usable)
    layout = _layout(settings, device, usable)
    _refuse_what_the_bundled_trainer_lacks(settings)
    base = loaded.base_dir
    runs_dir = Path(base, settings.job.runs_dir).resolve()
    ledger_dir = (
        runs_dir / "ledger" if settings.ledger.dir == "auto" else Path(base, settings.ledger.dir).resolve()
    )
    identity = digest(identity_values(settings, resolve_global_batch(settings, layout)))
    cpus = settings.train.threads
    save, grace_s = _from_records(settings, layout, identity, ledger_dir, warmup)
    return Plan(
        settings=settings,
        sources=loaded.sources,
        config_path=str(loaded.path),
        base_dir=str(base),
        run_dir=str(runs_dir / settings.job.name),
        ledger_dir=str(ledger_dir),
        identity_digest=identity,
        config_digest=digest(settings.model_dump(mode="json")),
        layout=layout,
        device=device,
        threads=max(1, cpu_count() // layout.procs_per_node) if cpus == "auto" else cpus,
        grace_s=grace_s,
        save=save,
    )


def refresh(plan: Plan, warmup: Warmup | None = None) -> Plan:
    """The same plan with what the ledger has learned since: save interval and grace, nothing else.

    The configuration file is not read again: it may be half-way through an edit for the next run.
    """
    save, grace_s = _from_records(
        plan.settings, plan.layout, plan.identity_digest, Path(plan.ledger_dir), warmup
    )
    return plan.model_copy(update={"save": save, "grace_s": grace_s})


def _from_records(
    settings: Settings, layout: Layout, identity: str, ledger_dir: Path, warmup: Warmup | None
) -> tuple[SaveInterval, float]:
    """(save interval, grace in seconds): all that the ledger and the warm-up decide."""
    attempts = read_ledger(ledger_dir).of_job(settings.job.name)
    measured = [a for a in attempts if a.end is not None and a.start.identity_digest == identity][-_RECENT:]
    save_s, save_basis = _save_cost(settings, measured, warmup)
    save = _save_interval(settings, layout, attempts, measured, save_s, save_basis, warmup)
    return save, _grace(settings, measured, save)


def _device(settings: Settings, gpus: int) -> str:
    wanted = settings.cluster.device
    if wanted == "cuda" and gpus == 0:
        raise TrainctlError(
            "no-gpu",
            "cluster.device is cuda, but this machine shows no NVIDIA GPU",
            hint='set cluster.device = "cpu", or check the driver with nvidia-smi',
        )
    return "cuda" if gpus and wanted != "cpu" else "cpu"


def _layout(settings: Settings, device: str, gpus: int) -> Layout:
    cluster = settings.cluster
    if cluster.nodes > 1:
        raise TrainctlError(
            "several-nodes",
            f"cluster.nodes is {cluster.nodes}, but this version launches on one node",
            hint="set cluster.nodes = 1",
        )
    procs = cluster.procs_per_node
    if procs == "auto":
        procs = gpus if device == "cuda" else 1
    return resolve_layout(settings.parallel, cluster.nodes, procs)


def _refuse_what_the_bundled_trainer_lacks(settings: Settings) -> None:
    if settings.job.script is not None:
        return
    if settings.data.path is None:
        raise TrainctlError(
            "no-data",
            "data.path is not set, and the bundled trainer needs text to train on",
            hint="set data.path to a text file or folder, or job.script to a trainer of your own",
        )
    parallel = settings.parallel
    for key, value in (("tp", parallel.tp), ("pp", parallel.pp), ("cp", parallel.cp), ("ep", parallel.ep)):
        if value > 1:
            raise TrainctlError(
                "not-in-bundled-trainer",
                f"parallel.{key} is {value}, but the bundled trainer is data parallel only",
                hint=f"set parallel.{key} = 1, or job.script to a trainer that has it",
            )
    if settings.model.experts:
        raise TrainctlError(
            "not-in-bundled-trainer",
            f"model.experts is {settings.model.experts}, but the bundled trainer's model is dense",
            hint="set model.experts = 0, or job.script to a trainer that has experts",
        )


def _save_cost(settings: Settings, measured: Sequence[Attempt], warmup: Warmup | None) -> tuple[float, str]:
    """(seconds one save blocks, where the number comes from)."""
    if settings.checkpoint.cost_s != "auto":
        return settings.checkpoint.cost_s, "checkpoint.cost_s"
    ends = [a.end for a in measured if a.end is not None and a.end.save_s is not None and a.end.saves]
    saves = sum(end.saves for end in ends)
    if saves:
        mean_s = sum((end.save_s or 0.0) * end.saves for end in ends) / saves
        return mean_s, f"mean of {saves} recorded save{'s' if saves > 1 else ''}"
    if warmup is not None and warmup.save_s:
        return warmup.save_s, "measured by the warm-up"
    if settings.job.script is not None:
        return ASSUMED_SAVE_S, f"{ASSUMED} {human_seconds(ASSUMED_SAVE_S)}, no save recorded yet"
    from trainctl.job.memory import checkpoint_bytes

    size = checkpoint_bytes(settings.model)
    return max(0.01, size / ASSUMED_WRITE_BYTES_PER_S), f"{ASSUMED} from the model's size at 500 MB/s"


def _step_time(measured: Sequence[Attempt], warmup: Warmup | None) -> tuple[float, str]:
    """(seconds of one step, where the number comes from)."""
    for attempt in reversed(measured):
        if attempt.end is not None and attempt.end.step_s:
            return attempt.end.step_s, f"median of attempt {attempt.start.attempt}"
    if warmup is not None and warmup.step_s:
        return warmup.step_s, "measured by the warm-up"
    return ASSUMED_STEP_S, f"{ASSUMED} {human_seconds(ASSUMED_STEP_S)}, no step recorded yet"


def _grace(settings: Settings, measured: Sequence[Attempt], save: SaveInterval) -> float:
    """A stop waits for the steps that are under way, then for the save."""
    if settings.restart.grace_s != "auto":
        return settings.restart.grace_s
    slowest = max([save.cost_s, *(a.end.save_s for a in measured if a.end is not None and a.end.save_s)])
    return max(MIN_GRACE_S, math.ceil(GRACE_FACTOR * (slowest + save.step_s)))


def _save_interval(
    settings: Settings,
    layout: Layout,
    attempts: Sequence[Attempt],
    measured: Sequence[Attempt],
    save_s: float,
    save_basis: str,
    warmup: Warmup | None,
) -> SaveInterval:
    """`save_steps` by the configured formula, from the recorded MTBF, tempered by a prior."""
    step_s, step_basis = _step_time(measured, warmup)
    past = history(attempts)
    failures = len(past.failure_times_s)
    prior_h = settings.ledger.prior_mtbf_h
    prior_s = mtbf.prior_s(layout.nodes) if prior_h == "auto" else prior_h * 3600
    mtbf_s = mtbf.for_interval_s(past.exposure_s, failures, prior_s)
    low_s, high_s = 0.0, math.inf
    if past.exposure_s > 0:
        low_s, high_s = mtbf.interval(past.exposure_s, failures)
    advice = interval.advise(settings.checkpoint.formula, mtbf_s, save_s, step_s)
    best = advice.chosen.steps
    if settings.job.script is None:  # another trainer's number of steps is its own
        best = min(best, settings.train.steps)
    wanted = settings.checkpoint.save_steps
    steps = best if wanted == "auto" else wanted
    return SaveInterval(
        steps=steps,
        basis=settings.checkpoint.formula if wanted == "auto" else "config",
        mtbf_s=mtbf_s,
        mtbf_basis=_mtbf_basis(past, prior_s),
        mtbf_low_s=low_s,
        mtbf_high_s=0.0 if math.isinf(high_s) else high_s,
        failures=failures,
        cost_s=save_s,
        cost_basis=save_basis,
        step_s=step_s,
        step_basis=step_basis,
        best_steps=best,
        overhead=interval.overhead(steps * step_s, mtbf_s, save_s),
        best_overhead=interval.overhead(best * step_s, mtbf_s, save_s),
    )


def _mtbf_basis(past: History, prior_s: float) -> str:
    failures = len(past.failure_times_s)
    prior = f"a prior of one failure in {human_seconds(prior_s)}"
    if past.exposure_s <= 0:
        return f"{prior}, nothing recorded yet"
    record = f"{failures} interruption{'' if failures == 1 else 's'} in {human_seconds(past.exposure_s)}"
    bad = failures and past.exposure_s / failures <= mtbf.plug_in_s(past.exposure_s, failures, prior_s)
    return record if bad else f"{record} and {prior}"
