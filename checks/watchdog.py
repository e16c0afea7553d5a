"""Item 11: the watchdog's limits fit this job: a slow step is not a hang, a hang is seen soon."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from checks.need import slowest_save, step_time
from trainctl.host.facts import NodeFacts
from trainctl.job.plan import ASSUMED, Plan
from trainctl.job.units import human_seconds

_MARGIN = 2.0  # a step or save may take this many times its usual time before it counts as a hang
_LATE_S = 1800.0  # a hang that is seen later than this costs more than most failures

FITS = Code("TC1100", Status.PASS, "the watchdog's limits fit")
TOO_SHORT = Code(
    "TC1101",
    Status.FAIL,
    "the watchdog would end healthy ranks",
    "raise watchdog.stall_s above twice the slowest step or save",
)
TOO_LONG = Code("TC1102", Status.WARN, "a hang would be noticed late", "lower watchdog.stall_s")
NO_HEARTBEAT = Code(
    "TC1103", Status.WARN, "the script sends no heartbeats, only process exits are seen",
    "call trainctl.Reporter().step(n) in the training loop",
)  # fmt: skip
NOT_KNOWN = Code(
    "TC1104", Status.UNKNOWN, "whether the script sends heartbeats is not known", "see the reason"
)
PERHAPS_TOO_SHORT = Code(
    "TC1105", Status.WARN, "the watchdog may end healthy ranks: nothing was measured yet",
    "raise watchdog.stall_s above twice the slowest step or save, once these are known",
)  # fmt: skip


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    stall_s = plan.settings.watchdog.stall_s
    found = []
    (step_s, step_basis), (save_s, save_basis) = step_time(plan, node), slowest_save(plan, node)
    what, slow_s, basis = ("step", step_s, step_basis) if step_s > save_s else ("save", save_s, save_basis)
    limit = f"{human_seconds(stall_s)} without progress"
    if stall_s < _MARGIN * slow_s:
        code = PERHAPS_TOO_SHORT if basis.startswith(ASSUMED) else TOO_SHORT
        found.append(code(f"{limit}, a {what} alone takes {human_seconds(slow_s)} ({basis})"))
    elif stall_s > _LATE_S:
        found.append(TOO_LONG(f"{limit} before a hang is noticed, {human_seconds(_LATE_S)} at most expected"))
    if not plan.bundled:
        found += _judge_script(node)
    return found or [FITS(f"{limit}, the slowest {what} takes {human_seconds(slow_s)} ({basis})")]


def _judge_script(node: NodeFacts) -> list[Finding]:
    trainer = node.trainer.value
    if trainer is None:
        return [NOT_KNOWN(f"heartbeats of the script not known: {node.trainer.error}")]
    if trainer.reports:
        return []
    return [NO_HEARTBEAT("no trainctl.Reporter in the script: only process exits are seen")]


CHECK = Check(
    item=11,
    name="watchdog",
    title="a slow step is not taken for a hang, and a hang is seen soon",
    codes=(FITS, TOO_SHORT, PERHAPS_TOO_SHORT, TOO_LONG, NO_HEARTBEAT, NOT_KNOWN),
    judge=each_node(_judge),
)
