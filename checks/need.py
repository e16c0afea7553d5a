"""How much memory a rank needs, from the closed form or, when there is one, the measured peak."""

from __future__ import annotations

from trainctl.host.facts import Gpu, NodeFacts
from trainctl.host.gpus import visible
from trainctl.job.memory import (
    BYTE_VOCAB,
    CUDA_RUNTIME_BYTES,
    Budget,
    budget,
    checkpoint_bytes,
    resolve_shape,
)
from trainctl.job.plan import Plan
from trainctl.job.settings import Model


def described(plan: Plan) -> bool:
    """Whether [model] describes what is trained. For another trainer, all defaults mean that it does not."""
    return plan.bundled or plan.settings.model != Model()


def vocabulary(plan: Plan, node: NodeFacts | None) -> int | None:
    """Tokens of the vocabulary; None when neither the settings nor the tokenizer tell."""
    explicit = plan.settings.model.vocab
    if explicit != "auto":
        return explicit
    data = plan.settings.data
    if data.tokenizer is not None:
        return node.trainer.value.vocab if node and node.trainer.value else None
    return None if (data.path or "").endswith(".bin") else BYTE_VOCAB


def uses_bf16(plan: Plan) -> bool:
    precision = plan.settings.train.precision
    return precision == "bf16" or (precision == "auto" and plan.device == "cuda")


def closed_form(plan: Plan, node: NodeFacts | None, micro_batch: int | None = None) -> Budget | None:
    """The budget of the fullest rank; None when the model is not known."""
    vocab = vocabulary(plan, node)
    model = plan.settings.model
    if not described(plan) or vocab is None or model.hidden < model.heads:
        return None
    return budget(
        resolve_shape(model, vocab),
        plan.layout,
        micro_batch=micro_batch or plan.settings.train.micro_batch,
        bf16=uses_bf16(plan),
        cuda=plan.device == "cuda",
    )


def peak_bytes(plan: Plan, node: NodeFacts) -> int | None:
    """Peak of one rank: measured by the warm-up, else computed; None when neither is possible."""
    if node.warmup is not None and node.warmup.ok and node.warmup.peak_memory_bytes:
        # torch counts what its allocator took; the context and NCCL's buffers come on top
        beside = CUDA_RUNTIME_BYTES if plan.device == "cuda" else 0
        return max(node.warmup.peak_memory_bytes) + beside
    computed = closed_form(plan, node)
    return None if computed is None else computed.total


def memory_need(plan: Plan, node: NodeFacts, capacity_bytes: int) -> int | None:
    """Peak plus the share of the device that must stay free."""
    peak = peak_bytes(plan, node)
    return None if peak is None else int(peak + plan.settings.preflight.headroom * capacity_bytes)


def used_gpus(plan: Plan, node: NodeFacts) -> tuple[Gpu, ...]:
    """The devices that ranks of this node will take: the first of the visible ones."""
    facts, environment = node.gpus.value, node.environment.value
    if facts is None:
        return ()
    selection = environment.get("CUDA_VISIBLE_DEVICES") if environment else None
    return visible(facts.devices, selection)[: plan.layout.procs_per_node]


def least_free(plan: Plan, node: NodeFacts) -> int | None:
    """Free bytes of the least free device, or of the host; None when not read."""
    if plan.device == "cuda":
        free = [gpu.free_bytes for gpu in used_gpus(plan, node)]
        known = [size for size in free if size is not None]
        return min(known) if known and len(known) == len(free) else None
    return node.memory.value.usable_bytes if node.memory.value else None


def slowest_save(plan: Plan, node: NodeFacts) -> tuple[float, str]:
    """(seconds, where the number comes from): the slower of the plan's and the warm-up's."""
    warmup = node.warmup
    if warmup is not None and warmup.ok and warmup.save_s > plan.save.cost_s:
        return warmup.save_s, "measured by the warm-up"
    return plan.save.cost_s, plan.save.cost_basis


def step_time(plan: Plan, node: NodeFacts) -> tuple[float, str]:
    """(seconds, where the number comes from): measured a moment ago, else the plan's."""
    warmup = node.warmup
    if warmup is not None and warmup.ok and warmup.step_s > 0:
        return warmup.step_s, "measured by the warm-up"
    return plan.save.step_s, plan.save.step_basis


def checkpoint_size(plan: Plan, node: NodeFacts) -> tuple[int, str] | None:
    """(bytes, where the number comes from) of one checkpoint; None when nothing tells."""
    if node.warmup is not None and node.warmup.ok and node.warmup.checkpoint_bytes:
        return node.warmup.checkpoint_bytes, "measured by the warm-up"
    resume = node.resume.value
    if resume is not None and resume.size_bytes:
        return resume.size_bytes, f"size of {resume.name}"
    vocab = vocabulary(plan, node)
    if not described(plan) or vocab is None:
        return None
    return checkpoint_bytes(plan.settings.model, vocab), "computed from the model"
