"""Item 6: the sizes divide. Says the product that does not, and the nearest layouts that work."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import log2

from checks.base import Check, Code, Finding, Status
from checks.need import described, vocabulary
from trainctl.host.facts import NodeFacts
from trainctl.job.plan import Plan

_SUGGESTIONS = 3

DIVIDES = Code("TC600", Status.PASS, "every size divides")
WORLD = Code(
    "TC601", Status.FAIL, "TP x PP x CP x DP is not the number of ranks", "change [parallel] or [cluster]"
)
EXPERT_RANKS = Code("TC602", Status.FAIL, "EP does not divide DP", "change ep or dp under [parallel]")
GLOBAL_BATCH = Code(
    "TC603",
    Status.FAIL,
    "micro_batch x DP does not divide global_batch",
    "take one of the values that the finding lists",
)
LAYERS = Code("TC604", Status.FAIL, "PP does not divide the layers", "change pp under [parallel]")
HEADS = Code("TC605", Status.FAIL, "TP does not divide the query heads", "change tp under [parallel]")
KV_HEADS = Code("TC606", Status.FAIL, "TP does not divide the key and value heads", "change tp or kv_heads")
VOCAB = Code("TC607", Status.FAIL, "TP does not divide the vocabulary", "pad model.vocab to a multiple of tp")
SEQUENCE = Code("TC608", Status.FAIL, "CP does not divide the sequence", "make seq_len a multiple of 2 x cp")
HIDDEN = Code("TC609", Status.FAIL, "the heads do not divide the hidden width", "change heads or hidden")
HEAD_WIDTH = Code(
    "TC610", Status.FAIL, "a head is of odd width, rotary positions need pairs", "change heads or hidden"
)
GROUPS = Code(
    "TC611", Status.FAIL, "the key and value heads do not divide the query heads", "change kv_heads"
)
ACROSS_NODES = Code(
    "TC612", Status.FAIL, "a tensor parallel group crosses nodes, so every layer waits for the network",
    "keep tp within procs_per_node",
)  # fmt: skip
VOCAB_UNKNOWN = Code(
    "TC613", Status.UNKNOWN, "the vocabulary is not known, and TP has to divide it",
    "set vocab under [model]", blocks_unknown=True,
)  # fmt: skip


def _judge(plan: Plan, nodes: Sequence[NodeFacts]) -> list[Finding]:
    layout = plan.layout
    found: list[Finding] = []
    if layout.product != layout.world:
        found.append(
            WORLD(
                f"TP {layout.tp} x PP {layout.pp} x CP {layout.cp} x DP {layout.dp} = {layout.product}, "
                f"but {layout.nodes} nodes x {layout.procs_per_node} = {layout.world} ranks",
                evidence=_nearest(plan),
            )
        )
    if layout.dp % layout.ep:
        found.append(EXPERT_RANKS(f"EP {layout.ep} does not divide DP {layout.dp}"))
    if layout.nodes > 1 and layout.procs_per_node % layout.tp:
        found.append(
            ACROSS_NODES(f"TP {layout.tp} does not divide the {layout.procs_per_node} ranks of a node")
        )
    found += _judge_batch(plan)
    if described(plan):
        vocab = vocabulary(plan, nodes[0] if nodes else None)
        found += _judge_model(plan, vocab)
    return found or [DIVIDES(_summary(plan))]


def _judge_batch(plan: Plan) -> list[Finding]:
    train = plan.settings.train
    unit = train.micro_batch * plan.layout.dp
    batch = plan.global_batch
    if batch % unit == 0:
        return []
    lower, upper = batch // unit * unit, (batch // unit + 1) * unit
    near = f"{lower} or {upper}" if lower else f"{upper}"
    return [
        GLOBAL_BATCH(
            f"global_batch {batch} is not a multiple of "
            f"micro_batch {train.micro_batch} x DP {plan.layout.dp} = {unit}; nearest is {near}"
        )
    ]


def _judge_model(plan: Plan, vocab: int | None) -> list[Finding]:
    model, layout = plan.settings.model, plan.layout
    kv_heads = model.heads if model.kv_heads == "auto" else model.kv_heads
    found = []

    def demand(whole: int, part: int, code: Code, words: str) -> None:
        if whole % part:
            found.append(code(f"{words}: {whole} / {part} leaves {whole % part}", evidence=_nearest(plan)))

    demand(model.layers, layout.pp, LAYERS, "layers / PP")
    demand(model.heads, layout.tp, HEADS, "heads / TP")
    demand(kv_heads, layout.tp, KV_HEADS, "kv_heads / TP")
    demand(model.heads, kv_heads, GROUPS, "heads / kv_heads")
    demand(model.hidden, model.heads, HIDDEN, "hidden / heads")
    if (
        layout.cp > 1
    ):  # each rank takes one piece from the front and one from the back, to share the mask evenly
        demand(model.seq_len, 2 * layout.cp, SEQUENCE, "seq_len / (2 x CP)")
    width = model.hidden // model.heads
    if model.hidden % model.heads == 0 and width % 2:
        found.append(HEAD_WIDTH(f"hidden {model.hidden} / heads {model.heads} = {width}, an odd width"))
    if vocab is not None:
        demand(vocab, layout.tp, VOCAB, "vocab / TP")
    elif layout.tp > 1:
        found.append(VOCAB_UNKNOWN(f"vocabulary not known, TP {layout.tp} has to divide it"))
    return found


def _fits(plan: Plan, tp: int, pp: int, cp: int) -> bool:
    model, layout = plan.settings.model, plan.layout
    if layout.world % (tp * pp * cp) or (layout.nodes > 1 and layout.procs_per_node % tp):
        return False
    if not described(plan):
        return True
    kv_heads = model.heads if model.kv_heads == "auto" else model.kv_heads
    return not (
        model.layers % pp
        or model.heads % tp
        or kv_heads % tp
        or (cp > 1 and model.seq_len % (2 * cp))
        or (model.vocab != "auto" and model.vocab % tp)
    )


def _nearest(plan: Plan) -> list[str]:
    """Layouts that work for this world, those first that change least (by factors)."""
    wanted = (plan.layout.tp, plan.layout.pp, plan.layout.cp)

    def distance(sizes: tuple[int, int, int]) -> float:
        return sum(abs(log2(size / want)) for size, want in zip(sizes, wanted, strict=True))

    sizes = _divisors(plan.layout.world)
    candidates = [triple for triple in product(sizes, sizes, sizes) if _fits(plan, *triple)]
    near = sorted(candidates, key=lambda sizes: (distance(sizes), sizes))[:_SUGGESTIONS]
    return [f"works: TP {tp} PP {pp} CP {cp} DP {plan.layout.world // (tp * pp * cp)}" for tp, pp, cp in near]


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _summary(plan: Plan) -> str:
    layout = plan.layout
    batch = f"{plan.settings.train.micro_batch} x DP {layout.dp} x {plan.accumulation}"
    sizes = f"TP {layout.tp} x PP {layout.pp} x CP {layout.cp} x DP {layout.dp}"
    ranks = f"{layout.world} rank{'' if layout.world == 1 else 's'}"
    return f"{sizes} = {ranks}, global batch {plan.global_batch} = micro {batch}"


CHECK = Check(
    item=6,
    name="divisibility",
    title="parallel sizes, model sizes and batch sizes divide each other",
    codes=(
        DIVIDES, WORLD, EXPERT_RANKS, GLOBAL_BATCH, LAYERS, HEADS, KV_HEADS, VOCAB, SEQUENCE, HIDDEN,
        HEAD_WIDTH, GROUPS, ACROSS_NODES, VOCAB_UNKNOWN,
    ),
    judge=_judge,
)  # fmt: skip
