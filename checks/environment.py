"""Item 2: the variables that ranks will see mean what their author meant."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from checks.variables import (
    DEBUGGING,
    FORBIDDEN,
    LOUD_DEBUG_RANKS,
    NO_EFFECT,
    OFF_VALUES,
    RENAMED,
    misread,
)
from trainctl.host.environment import LAUNCHER
from trainctl.host.facts import NodeFacts, Variable
from trainctl.host.gpus import visible
from trainctl.job.plan import Plan

CLEAN = Code("TC200", Status.PASS, "every variable is understood by the library that reads it")
MISREAD = Code(
    "TC201", Status.FAIL, "a library will not understand the value of a variable",
    "correct the value where the finding says it comes from, or set it under [env]",
)  # fmt: skip
BREAKS = Code("TC202", Status.FAIL, "a variable breaks every launch under torchrun", "unset it")
NOT_READ = Code(
    "TC203", Status.WARN, "a variable has no effect, nothing reads it",
    "remove it; for time-outs use train.collective_timeout_s, or init_process_group(timeout=)",
)  # fmt: skip
LEFT_OVER = Code(
    "TC204",
    Status.WARN,
    "a variable for hunting bugs is still set",
    "unset it once the bug is found, it slows every step",
)
CONFLICT = Code(
    "TC205", Status.WARN, "an old and a new name of one variable disagree", "keep the new name only, it wins"
)
UNREADABLE = Code(
    "TC206", Status.UNKNOWN, "the environment could not be collected in full",
    "make the file readable, or remove NCCL_CONF_FILE; what ranks will see is not known", blocks_unknown=True,
)  # fmt: skip
SHADOWED = Code(
    "TC207", Status.WARN, "two sources set a variable to different values", "keep one, [env] is the strongest"
)
DEVICES = Code(
    "TC208", Status.FAIL, "CUDA_VISIBLE_DEVICES shows fewer devices than there are ranks",
    "correct the list, or unset it: CUDA stops at the first entry that it does not know",
)  # fmt: skip


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    facts = node.environment.value
    if facts is None:
        return [UNREADABLE(f"environment not collected: {node.environment.error}")]
    found = [UNREADABLE(reason) for reason in facts.unreadable]
    for variable in facts.variables:
        if not variable.redacted:
            found += _judge_variable(plan, variable)
    for old, new in RENAMED.items():
        before, after = facts.get(old), facts.get(new)
        if before is not None and after is not None and before != after and _chosen(facts.variables, new):
            found.append(CONFLICT(f"{old} is {before}, {new} is {after}, which wins"))
    for weaker in facts.shadowed:
        strong = facts.get(weaker.name)
        if (
            strong is not None
            and not weaker.redacted
            and weaker.name.startswith(("NCCL_", "TORCH_", "GLOO_"))
        ):
            found.append(SHADOWED(f"{weaker.name} is {weaker.value} in {weaker.source}, ranks get {strong}"))
    found += _judge_devices(plan, node)
    if found:
        return found
    names = [
        variable.name
        for variable in facts.variables
        if variable.name.startswith(("NCCL_", "TORCH_", "GLOO_"))
    ]
    return [
        CLEAN(
            f"{len(names)} variable{'s' if len(names) > 1 else ''} of NCCL, torch or gloo, understood"
            if names
            else "no NCCL, torch or gloo variable set",
            evidence=[f"{v.name}={'***' if v.redacted else v.value} ({v.source})" for v in facts.variables],
        )
    ]


def _judge_variable(plan: Plan, variable: Variable) -> list[Finding]:
    name, value = variable.name, variable.value
    # on CPU ranks talk through gloo: what only NCCL or CUDA read cannot hurt this job
    unread = plan.device != "cuda" and name.startswith(("NCCL_", "TORCH_NCCL_", "CUDA_", "NSIGHT_"))
    shown = f'{name}="{value}" ({variable.source})'
    after = "; this job runs on CPU and does not read it" if unread else ""
    if name in FORBIDDEN:
        return [BREAKS(f"{shown}: {FORBIDDEN[name]}{after}", fix=_unset(variable), harmless=unread)]
    if reason := misread(name, value):
        return [MISREAD(f"{shown}: {reason}{after}", fix=_unset(variable), harmless=unread)]
    if name in NO_EFFECT:
        return [NOT_READ(f"{shown}: {NO_EFFECT[name]}", fix=_unset(variable))]
    if name in DEBUGGING and value not in OFF_VALUES and not unread:
        return [LEFT_OVER(f"{shown}: {DEBUGGING[name]}", fix=_unset(variable))]
    loud = name == "NCCL_DEBUG" and value.upper() in ("INFO", "TRACE")
    if loud and plan.layout.world > LOUD_DEBUG_RANKS and not unread:
        return [LEFT_OVER(f"{shown}: {plan.layout.world} ranks will flood their logs; WARN is enough")]
    return []


def _judge_devices(plan: Plan, node: NodeFacts) -> list[Finding]:
    selection = node.environment.value.get("CUDA_VISIBLE_DEVICES") if node.environment.value else None
    gpus = node.gpus.value
    if plan.device != "cuda" or selection is None or gpus is None or gpus.absent or "MIG-" in selection:
        return []
    count, ranks = len(visible(gpus.devices, selection)), plan.layout.procs_per_node
    if count >= ranks:
        return []
    shown = f'CUDA_VISIBLE_DEVICES="{selection}" shows {count} of {len(gpus.devices)} GPUs'
    return [DEVICES(f"{shown}, {ranks} ranks need one each")]


def _chosen(variables: tuple[Variable, ...], name: str) -> bool:
    """Whether somebody set it, rather than the launcher filling it in."""
    return any(variable.name == name and variable.source != LAUNCHER for variable in variables)


def _unset(variable: Variable) -> str:
    return f"unset {variable.name}" if variable.source == "environment" else ""


CHECK = Check(
    item=2,
    name="environment",
    title="the variables that ranks will see are understood, wanted, and set once",
    codes=(CLEAN, MISREAD, BREAKS, NOT_READ, LEFT_OVER, CONFLICT, UNREADABLE, SHADOWED, DEVICES),
    judge=each_node(_judge),
)
