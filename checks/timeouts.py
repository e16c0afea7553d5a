"""Item 7: a stuck collective ends in 10 to 15 minutes, later than any save, and never never."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from checks.need import slowest_save
from checks.variables import as_integer, switched_on
from trainctl.host.facts import EnvironmentFacts, NodeFacts
from trainctl.job.plan import Plan
from trainctl.job.units import human_seconds

SHORTEST_S, LONGEST_S = 600.0, 900.0  # below, a slow save looks like a hang; above, a hang costs too much
_HEARTBEAT_S = 480  # TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC when unset, torch 2.13

SOUND = Code("TC700", Status.PASS, "collectives end in 10 to 15 minutes when they are stuck")
OUTSIDE = Code(
    "TC701",
    Status.WARN,
    "the collective time-out is not 10 to 15 minutes",
    "set train.collective_timeout_s to 600",
)
SHORTER_THAN_SAVE = Code(
    "TC702", Status.FAIL, "a collective gives up before a checkpoint is written",
    "raise train.collective_timeout_s above the save, with room: ranks wait for the slowest writer",
)  # fmt: skip
WATCHDOG_LATE = Code(
    "TC703", Status.WARN, "ranks give up before the watchdog looks, so stacks of the hang are lost",
    "set watchdog.stall_s below train.collective_timeout_s",
)  # fmt: skip
FOR_EVER = Code(
    "TC704", Status.FAIL, "nothing would ever end a stuck collective",
    "unset TORCH_NCCL_ASYNC_ERROR_HANDLING or TORCH_NCCL_ENABLE_MONITORING",
)  # fmt: skip
HEARTBEAT = Code(
    "TC705", Status.FAIL, "NCCL's heartbeat monitor ends ranks during a checkpoint",
    "raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC above the longest time the host may be busy",
)  # fmt: skip
BOTH_WAITS = Code(
    "TC706", Status.WARN, "blocking wait and asynchronous error handling are alternatives, both are on",
    "unset TORCH_NCCL_BLOCKING_WAIT",
)  # fmt: skip
SCRIPT = Code(
    "TC707", Status.UNKNOWN, "the process groups of the script have time-outs of their own",
    "pass timeout= to init_process_group and to every new_group: sub-groups do not inherit it",
)  # fmt: skip


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    environment = node.environment.value
    found = _judge_nccl(plan, node, environment) if plan.device == "cuda" and environment else []
    if not plan.bundled:
        return found or [SCRIPT("time-outs of the script's process groups are not known")]
    timeout_s = plan.settings.train.collective_timeout_s
    stall_s = plan.settings.watchdog.stall_s
    save_s, basis = slowest_save(plan, node)
    shown = f"{human_seconds(timeout_s)} in one collective"
    if timeout_s <= save_s:
        found.append(SHORTER_THAN_SAVE(f"{shown}, a save takes {human_seconds(save_s)} ({basis})"))
    elif not SHORTEST_S <= timeout_s <= LONGEST_S:
        expected = f"{human_seconds(SHORTEST_S)} to {human_seconds(LONGEST_S)} expected"
        found.append(OUTSIDE(f"{shown}, {expected}"))
    if stall_s >= timeout_s:
        found.append(
            WATCHDOG_LATE(f"{shown}, the watchdog looks after {human_seconds(stall_s)} without progress")
        )
    save = f"a save takes {human_seconds(save_s)} ({basis})"
    return found or [SOUND(f"{shown}, watchdog after {human_seconds(stall_s)}, {save}")]


def _judge_nccl(plan: Plan, node: NodeFacts, environment: EnvironmentFacts) -> list[Finding]:
    found = []
    handling = as_integer(_value(environment, "ASYNC_ERROR_HANDLING"))
    monitoring = _value(environment, "ENABLE_MONITORING")
    blocking = switched_on(_value(environment, "BLOCKING_WAIT") or "0")
    if handling == 0 and monitoring is not None and not switched_on(monitoring) and not blocking:
        found.append(
            FOR_EVER("TORCH_NCCL_ASYNC_ERROR_HANDLING=0 and TORCH_NCCL_ENABLE_MONITORING=0 together")
        )
    if blocking and handling not in (None, 0):
        found.append(BOTH_WAITS(f"TORCH_NCCL_BLOCKING_WAIT=1 and TORCH_NCCL_ASYNC_ERROR_HANDLING={handling}"))
    heartbeat_s = as_integer(_value(environment, "HEARTBEAT_TIMEOUT_SEC")) or _HEARTBEAT_S
    save_s, basis = slowest_save(plan, node)
    if heartbeat_s <= save_s:
        found.append(HEARTBEAT(f"heartbeat {heartbeat_s} s, a save takes {human_seconds(save_s)} ({basis})"))
    return found


def _value(environment: EnvironmentFacts, name: str) -> str | None:
    """By its present name, else by the one it had before torch 2.2."""
    present = environment.get(f"TORCH_NCCL_{name}")
    return environment.get(f"NCCL_{name}") if present is None else present


CHECK = Check(
    item=7,
    name="timeouts",
    title="a stuck collective ends neither too early nor too late",
    codes=(SOUND, OUTSIDE, SHORTER_THAN_SAVE, WATCHDOG_LATE, FOR_EVER, HEARTBEAT, BOTH_WAITS, SCRIPT),
    judge=each_node(_judge),
)
