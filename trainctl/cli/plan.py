"""`trainctl plan`: every resolved value with the place it came from, then what follows from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainctl.cli import ui
from trainctl.cli.options import DEFAULT_CONFIG, ConfigFile, Overrides
from trainctl.job.secrets import HIDDEN, is_secret

if TYPE_CHECKING:
    from trainctl.job.plan import Plan, SaveInterval

_BASIS = {
    "config": "as the configuration says",
    "young": "by Young's formula",
    "daly": "by Daly's formula",
    "exact": "by the exact optimum",
}


def register(app: typer.Typer) -> None:
    app.command(name="plan")(plan)


def plan(
    config: ConfigFile = DEFAULT_CONFIG,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole plan as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say what each value means.")] = False,
) -> None:
    """Show every resolved value and where it came from."""
    from trainctl.run.planning import build_plan

    built = build_plan(config, list(overrides or []))
    if as_json:
        ui.data(built.public().model_dump_json(indent=2))
    else:
        show(built, verbose=verbose)
        named = "" if str(config) == "trainctl.toml" else f" {config}"
        ui.say("next: correct [parallel]" if built.layout.problems else f"next: trainctl preflight{named}")


def show(built: Plan, *, verbose: bool = False) -> None:
    """The settings by section, defaults dimmed, then the derived values. On stdout."""
    out = ui.out()
    out.print(headline(built), style="bold", markup=False)
    for section, rows in _sections(built):
        out.print(f"\n\\[{section}]", style="bold")
        for key, value, source, meaning in rows:
            note = f"  {meaning}" if verbose and meaning else ""
            style = "dim" if source == "default" else None
            out.print(f"  {key:<22}  {value:<20}  {source}{note}", style=style, markup=False)
    out.print("\nwhat follows", style="bold")
    for name, text in derived(built):
        out.print(f"  {name:<22}  {text}", markup=False)


def headline(built: Plan) -> str:
    """One line that says what this is: file, job, ranks, layout."""
    layout = built.layout
    nodes = (
        f"{layout.nodes} nodes x {_ranks(layout.procs_per_node)}"
        if layout.nodes > 1
        else _ranks(layout.world)
    )
    sizes = f"TP {layout.tp} PP {layout.pp} CP {layout.cp} DP {layout.dp}"
    return f"{built.config_path} · {built.settings.job.name} · {nodes} on {built.device} · {sizes}"


def derived(built: Plan) -> Iterator[tuple[str, str]]:
    """(name, value in words) of everything that was computed, with what it was computed from."""
    from trainctl.job.memory import parameters, resolve_shape
    from trainctl.job.units import human_count, human_seconds

    layout, settings = built.layout, built.settings
    yield "world", f"{layout.nodes} x {layout.procs_per_node} = {_ranks(layout.world)}"
    yield "layout", f"TP {layout.tp} x PP {layout.pp} x CP {layout.cp} x DP {layout.dp}, EP {layout.ep}"
    for problem in layout.problems:
        yield "  does not fit", problem
    if built.bundled:
        if settings.data.tokenizer is None or settings.model.vocab != "auto":
            count = parameters(resolve_shape(settings.model))
            yield "model", f"{human_count(count)} parameters"
        tokens = built.global_batch * settings.model.seq_len
        yield (
            "batch",
            f"{built.global_batch:,} sequences a step ({settings.train.micro_batch} x DP {layout.dp} x "
            f"{built.accumulation} accumulated), {tokens:,} tokens",
        )
    yield "device", f"{built.device}, {built.threads} CPU threads a rank"
    yield "run directory", built.run_dir
    yield "ledger", built.ledger_dir
    yield "identity", f"{built.identity_digest} (a checkpoint fits only this model, data and optimizer)"
    yield "config", built.config_digest
    yield from _save_rows(built.save)
    yield "grace", f"{human_seconds(built.grace_s)} between TERM and KILL"


def _save_rows(save: SaveInterval) -> Iterator[tuple[str, str]]:
    from trainctl.job.units import human_seconds

    every = human_seconds(save.steps * save.step_s)
    yield "save", f"every {save.steps:,} steps ({every}), {_BASIS.get(save.basis, save.basis)}"
    high = human_seconds(save.mtbf_high_s) if save.mtbf_high_s else "unbounded"
    bounds = f" [{human_seconds(save.mtbf_low_s)}, {high}]" if save.failures else ""
    yield "  MTBF", f"{human_seconds(save.mtbf_s)}{bounds}, {save.mtbf_basis}"
    yield "  one save", f"{human_seconds(save.cost_s)}, {save.cost_basis}"
    yield "  one step", f"{human_seconds(save.step_s)}, {save.step_basis}"
    yield "  expected loss", f"{_percent(save.overhead)} of the time to saves and redone steps"
    if save.best_steps != save.steps:
        yield "  best", f"every {save.best_steps:,} steps, {_percent(save.best_overhead)}"


def resolved(built: Plan) -> dict[str, Any]:
    """What the "auto" of a key means here. A key whose value only the trainer finds out is not in it."""
    from trainctl.job.memory import resolve_shape

    shape = resolve_shape(built.settings.model)
    return {
        "cluster.procs_per_node": built.layout.procs_per_node,
        "cluster.device": built.device,
        "parallel.dp": built.layout.dp,
        "model.kv_heads": shape.kv_heads,
        "model.ffn_hidden": shape.ffn,
        "train.global_batch": built.global_batch,
        "train.min_lr": built.settings.train.final_lr,
        "train.warmup_steps": built.settings.train.warmup,
        "train.threads": built.threads,
        "checkpoint.save_steps": built.save.steps,
        "checkpoint.cost_s": built.save.cost_s,
        "restart.grace_s": built.grace_s,
        "ledger.dir": built.ledger_dir,
    }


def _ranks(count: int) -> str:
    return f"{count:,} rank" if count == 1 else f"{count:,} ranks"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-4 else "under 0.01 %"


def _sections(built: Plan) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    """Section -> rows of (key, value, source, meaning). A section without keys is left out."""
    values, automatic = built.settings.model_dump(mode="json"), resolved(built)
    for section, table in values.items():
        fields = getattr(type(getattr(built.settings, section)), "model_fields", {})
        rows = [
            (
                key,
                HIDDEN
                if section == "env" and is_secret(key)
                else _text(value, automatic.get(f"{section}.{key}")),
                built.sources[f"{section}.{key}"],
                str(fields[key].description or "") if key in fields else "",
            )
            for key, value in table.items()
        ]
        if rows:
            yield section, rows


def _text(value: Any, automatic: Any = None) -> str:
    """A value as the file would say it, "auto" with what it means here; nothing is said as a dash."""
    if value == "auto" and automatic is not None:
        return f"auto: {_text(automatic)}"
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False)
