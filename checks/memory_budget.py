"""Item 4: the model fits an empty device with headroom, computed and, after the warm-up, measured."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from checks.need import closed_form, described, used_gpus, vocabulary
from trainctl.host.facts import NodeFacts
from trainctl.job.plan import Plan
from trainctl.job.units import human_bytes

_DISAGREE = 0.25  # closed form against measured peak, as a share of the measured one

FITS = Code("TC400", Status.PASS, "the peak fits with headroom")
TOO_BIG = Code(
    "TC401", Status.FAIL, "the computed peak leaves too little headroom",
    "lower train.micro_batch (the finding names the one that fits), or divide the model over more ranks",
)  # fmt: skip
MEASURED_TOO_BIG = Code(
    "TC402", Status.FAIL, "the peak that the warm-up measured leaves too little headroom",
    "lower train.micro_batch, or divide the model over more ranks",
)  # fmt: skip
DISAGREE = Code(
    "TC403", Status.WARN, "computed and measured peak differ by more than a quarter",
    "trust the measured one; the model of the script may not be what [model] says",
)  # fmt: skip
CAPACITY_UNREADABLE = Code(
    "TC404", Status.UNKNOWN, "the size of the memory could not be read", "see the reason"
)
VOCAB_UNKNOWN = Code(
    "TC405",
    Status.UNKNOWN,
    "the vocabulary is not known, so the budget cannot be computed",
    "set vocab under [model]",
)
NOT_DESCRIBED = Code(
    "TC406",
    Status.SKIP,
    "the model of the script is not described",
    "describe it under [model] to have its budget judged",
)


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    if not described(plan):
        return [NOT_DESCRIBED("the model of the script is not described under [model]")]
    computed = closed_form(plan, node)
    if computed is None and vocabulary(plan, node) is None:
        return [VOCAB_UNKNOWN("vocabulary not known: neither model.vocab nor a readable tokenizer.json says")]
    if computed is None:
        return [VOCAB_UNKNOWN("the model's sizes do not fit together, item 6 says how")]
    capacity, unread = _capacity(plan, node)
    if capacity is None:
        return [CAPACITY_UNREADABLE(f"size of the memory not read: {unread}")]
    headroom = plan.settings.preflight.headroom
    table = [f"{human_bytes(size):>10}  {what}" for what, size in computed.terms]
    limit = capacity * (1 - headroom)
    measured = _measured(node)
    if measured is not None and measured > limit:
        return [MEASURED_TOO_BIG(_sizes("measured peak", measured, capacity, headroom), evidence=table)]
    if measured is None and computed.total > limit:
        return [
            TOO_BIG(
                _sizes("peak", computed.total, capacity, headroom),
                evidence=[*table, _advice(plan, node, limit)],
            )
        ]
    # on CPU the measured peak is resident memory, which an allocator's cache and page reuse blur
    if measured and plan.device == "cuda" and abs(computed.total - measured) > _DISAGREE * measured:
        both = f"computed {human_bytes(computed.total)}, measured {human_bytes(measured)}"
        return [DISAGREE(f"{both} of {human_bytes(capacity)} per rank", evidence=table)]
    peak = computed.total if measured is None else measured
    basis = f"closed form {human_bytes(computed.total)}"
    basis += "" if measured is None else f", warm-up {human_bytes(measured)}"
    free = 1 - peak / capacity
    return [
        FITS(
            f"{human_bytes(peak)} peak of {human_bytes(capacity)} per rank ({basis}), {free:.1%} headroom",
            evidence=table,
        )
    ]


def _capacity(plan: Plan, node: NodeFacts) -> tuple[int | None, str]:
    """Bytes that one rank may take on an otherwise empty machine, or the reason why that is not known."""
    if plan.device == "cuda":
        totals = [gpu.total_bytes for gpu in used_gpus(plan, node)]
        known = [total for total in totals if total]
        if not known or len(known) < len(totals):
            return None, node.gpus.error or "NVML did not report it"
        return min(known), ""
    memory = node.memory.value
    return (memory.capacity_bytes // plan.layout.procs_per_node, "") if memory else (None, node.memory.error)


def _measured(node: NodeFacts) -> int | None:
    warmup = node.warmup
    return max(warmup.peak_memory_bytes) if warmup and warmup.ok and warmup.peak_memory_bytes else None


def _sizes(what: str, peak: int, capacity: int, headroom: float) -> str:
    shortage = "more than there is" if peak > capacity else f"{1 - peak / capacity:.1%} headroom"
    sizes = f"{what} {human_bytes(peak)} of {human_bytes(capacity)} per rank"
    return f"{sizes}, {shortage}, {headroom:.0%} headroom demanded"


def _advice(plan: Plan, node: NodeFacts, limit: float) -> str:
    for micro_batch in range(plan.settings.train.micro_batch - 1, 0, -1):
        smaller = closed_form(plan, node, micro_batch)
        if smaller is not None and smaller.total <= limit:
            return f"train.micro_batch = {micro_batch} would fit, with {human_bytes(smaller.total)}"
    return "no micro batch fits: divide the model (parallel.tp, parallel.pp) or make it smaller"


CHECK = Check(
    item=4,
    name="memory budget",
    title="weights, gradients, optimizer and activations fit the device with headroom",
    codes=(FITS, TOO_BIG, MEASURED_TOO_BIG, DISAGREE, CAPACITY_UNREADABLE, VOCAB_UNKNOWN, NOT_DESCRIBED),
    judge=each_node(_judge),
)
