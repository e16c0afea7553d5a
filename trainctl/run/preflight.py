"""Preflight: collect facts, judge them against the plan, decide whether a launch may start."""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from checks.base import Check, Finding, Status
from checks.health import WAIVER
from checks.registry import CHECKS, CODES, heading
from trainctl.errors import TrainctlError
from trainctl.host.deadline import Reader, read_all
from trainctl.host.environment import read_environment
from trainctl.host.facts import SOURCES, NodeFacts, ResumeFacts, Warmup
from trainctl.host.gpus import read_gpus
from trainctl.host.leftovers import read_leftovers
from trainctl.host.limits import read_limits
from trainctl.host.memory import read_memory
from trainctl.host.nics import read_nics
from trainctl.host.resume import read_resume
from trainctl.host.shm import read_shm
from trainctl.host.software import read_software
from trainctl.host.storage import read_storage
from trainctl.host.trainer import read_trainer
from trainctl.job.plan import Plan
from trainctl.run.preflight_report import Report
from trainctl.run.torchrun import rank_environment

__all__ = ["Report", "collect", "judge", "prepare"]

WARMUP_ITEM = 5


def collect(plan: Plan, environ: Mapping[str, str] | None = None, *, fresh: bool = False) -> NodeFacts:
    """Read every source of this machine, each for at most `preflight.deadline_s`. Never raises for a source.

    `environ`: what ranks will inherit, by default this process' environment. `fresh`: the run starts
    over, so what is in its directory does not matter. Call it from the main thread before other
    threads start: sources are read in forked children.
    """
    readers = _readers(plan, dict(os.environ if environ is None else environ))
    if fresh:
        readers["resume"] = ResumeFacts
    readings = read_all(readers, plan.settings.preflight.deadline_s)
    return NodeFacts.model_validate({"host": socket.gethostname(), "time": time.time(), **readings})


def _readers(plan: Plan, environ: dict[str, str]) -> dict[str, Reader]:
    settings = plan.settings
    attempt = plan.run.attempt(1)  # only its name matters here: it is not made
    launcher = rank_environment(plan, attempt, None, "", {})
    launcher = {name: value for name, value in launcher.items() if name not in settings.env}
    seen = {**launcher, **environ, **settings.env}
    script = None if settings.job.script is None else plan.resolve(settings.job.script)
    tokenizer = None if settings.data.tokenizer is None else plan.resolve(settings.data.tokenizer)
    places = {"run": Path(plan.run_dir), "ledger": Path(plan.ledger_dir), "dumps": _dump_directory(seen)}
    deadline_s = settings.preflight.deadline_s
    return {
        "gpus": read_gpus,
        "memory": read_memory,
        "shm": read_shm,
        "leftovers": read_leftovers,
        "nics": read_nics,
        "environment": lambda: read_environment(environ, settings.env, launcher),
        "storage": lambda: read_storage(places),
        "limits": lambda: read_limits(settings.cluster.rendezvous_port),
        "software": read_software,
        "trainer": lambda: read_trainer(script, _bundled_trainer(), tokenizer, 0.8 * deadline_s),
        "resume": lambda: read_resume(plan.run.checkpoints),
    }


def _dump_directory(seen: Mapping[str, str]) -> Path:
    """Where torch 2.13 puts flight recorder dumps: the directory of a path prefix."""
    stem = seen.get("TORCH_FR_DUMP_TEMP_FILE") or seen.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    if stem:
        return Path(stem).absolute().parent
    cache = seen.get("XDG_CACHE_HOME") or str(Path(seen.get("HOME") or "/").joinpath(".cache"))
    return Path(cache, "torch")


def _bundled_trainer() -> Path:
    spec = importlib.util.find_spec("payload")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0] if places else "payload", "train.py")


def judge(plan: Plan, nodes: Sequence[NodeFacts], only: Sequence[str] = ()) -> Report:
    """Run the checks that `only` selects (item numbers, names or codes; all when empty) on the facts.

    Raises TrainctlError for a selection that matches nothing.
    """
    started = time.monotonic()
    selected = _select(only)
    findings: list[Finding] = []
    durations: dict[str, float] = {}
    for node in nodes:
        for source in SOURCES:
            name = f"facts {source}"
            durations[name] = max(durations.get(name, 0.0), getattr(node, source).seconds)
    for check, codes in selected:
        began = time.monotonic()
        found = check.judge(plan, nodes)
        if codes:
            open_questions = (Status.UNKNOWN, Status.SKIP)  # who was not looked at has not passed
            found = [f for f in found if f.code in codes or f.status in open_questions] or [
                _absent(check, codes)
            ]
        findings += found
        durations[f"item {check.name}"] = round(time.monotonic() - began, 4)
    return Report(
        title=headline(plan),
        config=_short(plan.config_path),
        findings=tuple(_waive(plan, findings)),
        seconds=time.monotonic() - started,
        durations=durations,
        facts=tuple(nodes),
    )


def _select(only: Sequence[str]) -> list[tuple[Check, set[str]]]:
    """(check, codes that are asked for; empty asks for all)."""
    if not only:
        return [(check, set()) for check in CHECKS]
    asked: dict[int, set[str] | None] = {}  # None: the whole item
    for word in only:
        code = CODES.get(word.upper())
        check = next((check for check in CHECKS if word.lower() in (str(check.item), check.name)), None)
        if code is not None:
            codes = asked.setdefault(code.item, set())
            if codes is not None:
                codes.add(code.code)
        elif check is not None:
            asked[check.item] = None
        else:
            raise TrainctlError(
                "no-such-check",
                f"{word!r} is neither an item, nor a name, nor a code",
                hint="trainctl preflight --list shows all",
            )
    return [(check, asked[check.item] or set()) for check in CHECKS if check.item in asked]


def _absent(check: Check, codes: set[str]) -> Finding:
    """Asked for one code alone, and it was not found: that is a pass of this code."""
    code = CODES[min(codes)]
    return Finding(code=code.code, item=check.item, status=Status.PASS, summary=f"not found: {code.meaning}")


def _waive(plan: Plan, findings: Sequence[Finding]) -> list[Finding]:
    """Findings with the waivers of the configuration applied; a waiver of nothing known is a finding."""
    waivers = {waiver.code: waiver.reason for waiver in plan.settings.preflight.waive}
    result = [
        finding.model_copy(update={"waived": waivers[finding.code]})
        if finding.code in waivers and finding.status not in (Status.PASS, Status.SKIP)
        else finding
        for finding in findings
    ]
    unknown = [code for code in waivers if code not in CODES]
    return result + [WAIVER(f"preflight.waive names {code}, which no check says") for code in unknown]


def headline(plan: Plan) -> str:
    """ "trainctl.toml · gpt-1b · 4 nodes x 8 GPUs · TP 2 PP 1 CP 1 DP 16"."""
    layout = plan.layout
    nodes = f"{layout.nodes} node{'s' if layout.nodes > 1 else ''}"
    ranks = f"{layout.procs_per_node} {'GPU' if plan.device == 'cuda' else 'CPU rank'}"
    ranks += "s" if layout.procs_per_node > 1 else ""
    sizes = f"TP {layout.tp} PP {layout.pp} CP {layout.cp} DP {layout.dp}"
    return f"{_short(plan.config_path)} · {plan.settings.job.name} · {nodes} x {ranks} · {sizes}"


def _short(path: str) -> str:
    return min(os.path.relpath(path), path, key=len)


def prepare(
    make_plan: Callable[[Warmup | None], Plan],
    warm_up: Callable[[Plan], Warmup],
    *,
    quick: bool = False,
    fresh: bool = False,
    environ: Mapping[str, str] | None = None,
    only: Sequence[str] = (),
) -> tuple[Plan, Report]:
    """Preflight with the warm-up in its place: on a machine that everything else calls ready.

    `make_plan`: the plan, from the warm-up's measurements once there are any.
    """
    started = time.monotonic()
    plan = make_plan(None)
    facts = collect(plan, environ, fresh=fresh)
    reason = _no_warmup(plan, quick)
    wanted = not reason and any(check.item == WARMUP_ITEM for check, _ in _select(only))
    report = judge(plan, [facts.without_warmup(reason or "not selected")], only)
    if wanted and not report.ok:
        causes = ", ".join(dict.fromkeys(heading_of(finding) for finding in report.blocking))
        report = judge(plan, [facts.without_warmup(f"not run: {causes} first")], only)
    elif wanted:
        warmup = warm_up(plan)
        plan = make_plan(warmup if warmup.ok else None)
        report = judge(plan, [facts.with_warmup(warmup)], only)
    return plan, report.model_copy(update={"seconds": time.monotonic() - started})


def heading_of(finding: Finding) -> str:
    return next(heading(check) for check in CHECKS if check.item == finding.item)


def _no_warmup(plan: Plan, quick: bool) -> str:
    """Why the warm-up is left out; "" when it is wanted."""
    if quick:
        return "--quick"
    if not plan.settings.preflight.warmup:
        return "preflight.warmup is false"
    return "" if plan.bundled else "the script is not run on trial"
