"""Item 5: the real layout did real steps, a save and a load, a moment ago."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from trainctl.host.facts import NodeFacts
from trainctl.job.plan import Plan
from trainctl.job.units import human_bytes, human_seconds

RAN = Code("TC500", Status.PASS, "the warm-up ran")
FAILED = Code(
    "TC501",
    Status.FAIL,
    "the warm-up failed",
    "read the last lines of its log; a launch would fail the same way",
)
NOT_RUN = Code(
    "TC502", Status.SKIP, "the warm-up was not run", "leave out --quick, or set preflight.warmup = true"
)


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    warmup = node.warmup
    if warmup is None:
        return [NOT_RUN(node.warmup_skipped)]
    if not warmup.ok:
        return [FAILED(warmup.error or "no reason given", evidence=warmup.log.splitlines())]
    parts = [f"{human_seconds(warmup.step_s)} a step"]
    if warmup.step_s > 0 and warmup.tokens_per_step:
        parts.append(f"{warmup.tokens_per_step / warmup.step_s:,.0f} tokens/s")
    parts.append(f"save {human_seconds(warmup.save_s)}, load {human_seconds(warmup.load_s)}")
    parts.append(f"checkpoint {human_bytes(warmup.checkpoint_bytes)}")
    if warmup.peak_memory_bytes:
        parts.append(f"peak {human_bytes(max(warmup.peak_memory_bytes))}")
    return [RAN(", ".join(parts), evidence=[f"took {human_seconds(warmup.seconds)}"])]


CHECK = Check(
    item=5,
    name="warm-up step",
    title="the real layout can do steps, save and load",
    codes=(RAN, FAILED, NOT_RUN),
    judge=each_node(_judge),
)
