"""Item 12: checkpoints are as far apart as the recorded failures say, and there is room for them."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from checks.need import checkpoint_size
from trainctl.host.facts import NodeFacts
from trainctl.job.plan import Plan, SaveInterval
from trainctl.job.units import human_bytes, human_seconds

_TOLERANCE = 0.05  # relative overhead above the best that is not worth a word
_DAY_S = 86_400

SOUND = Code("TC1200", Status.PASS, "the interval follows from the recorded failures")
COSTLY = Code(
    "TC1201",
    Status.WARN,
    "the configured interval costs more than it has to",
    'set checkpoint.save_steps = "auto"',
)
SPACE = Code(
    "TC1202", Status.FAIL, "checkpoints do not fit", "make room, lower checkpoint.keep, or move job.runs_dir"
)
SPACE_UNKNOWN = Code("TC1203", Status.UNKNOWN, "room for checkpoints could not be judged", "see the reason")
NOT_PASSED_ON = Code(
    "TC1204",
    Status.WARN,
    "the interval is not passed to the script",
    "use {save_steps} in job.args, or set it by hand",
)


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    save = plan.save
    found = []
    best = save.basis != "config"
    if not best and save.overhead > save.best_overhead * (1 + _TOLERANCE):
        loss_s = (save.overhead - save.best_overhead) * _DAY_S
        found.append(
            COSTLY(
                f"every {save.steps} steps loses {save.overhead:.2%} of the time, every {save.best_steps} "
                f"{save.best_overhead:.2%}: {human_seconds(loss_s)} a day",
                evidence=_numbers(save),
            )
        )
    if (
        not plan.bundled
        and best
        and not any("{save_steps}" in argument for argument in plan.settings.job.args)
    ):
        found.append(
            NOT_PASSED_ON(f"every {save.steps} steps is best, job.args does not mention {{save_steps}}")
        )
    found += _judge_room(plan, node)
    return found or [SOUND(_summary(save), evidence=_numbers(save))]


def _judge_room(plan: Plan, node: NodeFacts) -> list[Finding]:
    """keep + 1: the newest is written before the oldest goes. What exists already has its room."""
    size = checkpoint_size(plan, node)
    place = node.storage.value.place("run") if node.storage.value else None
    if place is None:
        return [SPACE_UNKNOWN(f"room for checkpoints not judged: {node.storage.error or 'not collected'}")]
    if size is None:
        return []  # the model of a script is its own matter; item 10 has tried the directory
    each, basis = size
    keep = plan.settings.checkpoint.keep
    present = node.resume.value.present if node.resume.value else 0
    count = keep + 1 - min(present, keep)
    if place.free_bytes >= count * each:
        return []
    need = f"{count} checkpoints of {human_bytes(each)} needed ({basis})"
    return [SPACE(f"{human_bytes(place.free_bytes)} free, {need}")]


def _summary(save: SaveInterval) -> str:
    bounds = ""
    if save.mtbf_low_s and save.failures:
        high = human_seconds(save.mtbf_high_s) if save.mtbf_high_s else "unbounded"
        bounds = f" [{human_seconds(save.mtbf_low_s)}, {high}]"
    return (
        f"every {save.steps} steps ({human_seconds(save.steps * save.step_s)}, {save.basis}): "
        f"MTBF {human_seconds(save.mtbf_s)} ({save.mtbf_basis}){bounds}, "
        f"save blocks {human_seconds(save.cost_s)} ({save.cost_basis})"
    )


def _numbers(save: SaveInterval) -> list[str]:
    return [
        f"MTBF {human_seconds(save.mtbf_s)}: {save.mtbf_basis}",
        f"save {human_seconds(save.cost_s)}: {save.cost_basis}",
        f"step {human_seconds(save.step_s)}: {save.step_basis}",
    ]


CHECK = Check(
    item=12,
    name="interval",
    title="the checkpoint interval follows from recorded failures, and checkpoints fit",
    codes=(SOUND, COSTLY, SPACE, SPACE_UNKNOWN, NOT_PASSED_ON),
    judge=each_node(_judge),
)
