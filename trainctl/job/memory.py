"""Device memory of one rank, in closed form: what a step holds at its peak, term by term.

Pure arithmetic over the plan. The model is the bundled kind of transformer: RMSNorm, rotary
positions, grouped-query attention through SDPA, SwiGLU, float32 weights with optional bf16 autocast.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from trainctl.job.layout import Layout
from trainctl.job.settings import Model

BYTE_VOCAB = 256  # without a tokenizer every byte is a token
_GIB = 1 << 30
# Not computed from the model. Typical values; the warm-up measures the truth.
CUDA_RUNTIME_BYTES = 1 * _GIB  # CUDA context, cuBLAS workspace, NCCL buffers
CPU_RUNTIME_BYTES = int(0.5 * _GIB)  # interpreter with torch loaded and its allocator's slack


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The model with nothing left open. `ffn` is the inner width of SwiGLU."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq_len: int
    tied_head: bool

    @property
    def kv_width(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * (self.hidden // self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bytes of the fullest rank, in the order in which people ask."""

    weights: int
    weight_casts: int
    gradients: int
    adam: int
    activations: int
    temporary: int
    runtime: int

    @property
    def total(self) -> int:
        return sum(size for _, size in self.terms)

    @property
    def terms(self) -> tuple[tuple[str, int], ...]:
        """(what, bytes), without the terms that are zero."""
        terms = (
            ("weights, float32", self.weights),
            ("weights cast to bf16", self.weight_casts),
            ("gradients", self.gradients),
            ("adam moments", self.adam),
            ("activations", self.activations),
            ("largest temporary (logits or one block)", self.temporary),
            ("runtime (assumed)", self.runtime),
        )
        return tuple(term for term in terms if term[1])


def resolve_shape(model: Model, vocab: int = BYTE_VOCAB) -> Shape:
    """Fill in the "auto" values as the settings document them. `vocab`: the tokenizer's size."""
    ffn = 32 * ceil(model.hidden * 8 / 3 / 32) if model.ffn_hidden == "auto" else model.ffn_hidden
    return Shape(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.heads if model.kv_heads == "auto" else model.kv_heads,
        ffn=ffn,
        vocab=vocab if model.vocab == "auto" else model.vocab,
        seq_len=model.seq_len,
        tied_head=model.tied_head,
    )


def layer_parameters(shape: Shape) -> int:
    """Query, key, value and output projections, three SwiGLU matrices, two norms."""
    attention = 2 * shape.hidden * shape.hidden + 2 * shape.hidden * shape.kv_width
    return attention + 3 * shape.hidden * shape.ffn + 2 * shape.hidden


def parameters(shape: Shape) -> int:
    """Of the whole model."""
    embedding = shape.vocab * shape.hidden
    return (1 if shape.tied_head else 2) * embedding + shape.layers * layer_parameters(shape) + shape.hidden


def checkpoint_bytes(model: Model, vocab: int = BYTE_VOCAB) -> int:
    """Weights and two Adam moments, four bytes each, every value once."""
    return 12 * parameters(resolve_shape(model, vocab))


def activation_bytes_per_token(shape: Shape, bf16: bool, tp: int) -> float:
    """Kept by one layer for its backward, bytes per token, without recomputation.

    Counted over the operations of the layer. Not divided by TP, for both norms: the input and the
    normalised input (float32, the residual stream) and the output. Divided: the joint projection (its
    value part is used in place), rotated query and key, the output of attention twice (SDPA keeps
    it, and so does the projection behind it) with its log-sum-exp per head (float32), and gate, up,
    silu(gate) and their product. SDPA does not keep the score matrix.
    """
    size = 2 if bf16 else 4
    norms = 2 * shape.hidden * (4 + 4 + size)
    attention = (4 * shape.hidden + 3 * shape.kv_width) * size + 4 * shape.heads
    return norms + (attention + 4 * shape.ffn * size) / tp


def temporary_bytes_per_token(shape: Shape, bf16: bool, tp: int) -> float:
    """The larger of two moments of the backward: the loss (log-softmax and two gradients of its size,
    float32), or the last block (gradients of its SwiGLU and of the residual stream)."""
    size = 2 if bf16 else 4
    return max(12 * shape.vocab / tp, size * (3 * shape.ffn / tp + shape.hidden))


def budget(shape: Shape, layout: Layout, *, micro_batch: int, bf16: bool, cuda: bool) -> Budget:
    """What the fullest rank holds at the peak, early in the backward pass of a micro-batch.

    TP divides matrices and heads, PP the layers (the first stage also holds the embedding and keeps
    PP micro-batches in flight, 1F1B), CP the tokens of a sequence. DP replicates, and reduces the
    gradients in place.
    """
    embedding = shape.vocab * shape.hidden
    # without pipeline stages the first rank also has the output head
    embeddings = 1 if layout.pp > 1 or shape.tied_head else 2
    stage_layers = ceil(shape.layers / layout.pp)
    held = (embeddings * embedding + stage_layers * layer_parameters(shape)) // layout.tp + shape.hidden
    tokens = micro_batch * shape.seq_len / layout.cp
    kept = stage_layers * layout.pp * activation_bytes_per_token(shape, bf16, layout.tp)
    return Budget(
        weights=4 * held,
        weight_casts=2 * held if bf16 else 0,
        gradients=4 * held,
        adam=8 * held,
        activations=int(tokens * kept),
        temporary=int(tokens * temporary_bytes_per_token(shape, bf16, layout.tp)),
        runtime=CUDA_RUNTIME_BYTES if cuda else CPU_RUNTIME_BYTES,
    )
