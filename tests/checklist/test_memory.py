"""The closed form against torch's own memory tracker.

The peaks are those of torch.distributed._tools.mem_tracker.MemTracker, torch 2.13, over two fake-tensor
iterations of the bundled model with fused AdamW on CPU, in MiB; runtime overhead is not in them.
"""

from __future__ import annotations

import pytest

from trainctl.job.layout import resolve_layout
from trainctl.job.memory import Budget, budget, checkpoint_bytes, parameters, resolve_shape
from trainctl.job.settings import Model, Parallel

MIB = 1 << 20
SMALL = Model(layers=4, hidden=256)
GPT2 = Model(layers=12, hidden=768, heads=12, seq_len=1024)
GROUPED = Model(layers=12, hidden=768, heads=12, kv_heads=4, seq_len=1024, tied_head=False)
MEDIUM = Model(layers=24, hidden=1024, heads=16, seq_len=1024)


def of(
    model: Model, vocab: int, micro_batch: int, *, bf16: bool = False, ranks: int = 1, **sizes: int
) -> Budget:
    layout = resolve_layout(Parallel.model_validate(sizes), 1, ranks)
    shape = resolve_shape(model, vocab)
    return budget(shape, layout, micro_batch=micro_batch, bf16=bf16, cuda=False)


@pytest.mark.parametrize(
    ("model", "vocab", "micro_batch", "bf16", "measured_mib"),
    [
        (SMALL, 256, 8, False, 255.6),
        (GPT2, 50304, 8, False, 13495.4),
        (GPT2, 50304, 8, True, 10887.1),
        (GROUPED, 8192, 4, True, 3765.2),
        (MEDIUM, 256, 4, False, 13866.8),
    ],
)
def test_closed_form_is_within_three_percent_of_the_tracked_peak(
    model: Model, vocab: int, micro_batch: int, bf16: bool, measured_mib: float
) -> None:
    computed = of(model, vocab, micro_batch, bf16=bf16)
    assert (computed.total - computed.runtime) / MIB == pytest.approx(measured_mib, rel=0.03)


def test_weights_gradients_and_moments_are_exact() -> None:
    computed = of(GPT2, 50304, 8)  # tracker: PARAM 471.4, GRAD 471.4, OPT 942.9 MiB
    assert computed.weights / MIB == pytest.approx(471.4, abs=0.1)
    assert computed.gradients == computed.weights
    assert computed.adam / MIB == pytest.approx(942.9, abs=0.1)
    assert computed.weights == 4 * parameters(resolve_shape(GPT2, 50304))


def test_a_checkpoint_is_weights_and_two_moments() -> None:
    assert checkpoint_bytes(GPT2, 50304) == 12 * parameters(resolve_shape(GPT2, 50304))
    assert checkpoint_bytes(SMALL) == checkpoint_bytes(SMALL, 256)


def test_parallel_sizes_divide_what_they_divide() -> None:
    alone = of(MEDIUM, 50304, 4)
    assert of(MEDIUM, 50304, 4, ranks=4) == alone  # data parallelism replicates
    tensor = of(MEDIUM, 50304, 4, ranks=2, tp=2)
    assert tensor.adam == pytest.approx(alone.adam / 2, rel=0.01)
    assert alone.activations / 2 < tensor.activations < alone.activations  # norms are not divided
    assert tensor.temporary == pytest.approx(alone.temporary / 2, rel=0.01)
    pipeline = of(MEDIUM, 50304, 4, ranks=2, pp=2)
    assert pipeline.adam < alone.adam
    assert pipeline.activations == alone.activations  # half of the layers, two micro-batches in flight
    context = of(MEDIUM, 50304, 4, ranks=2, cp=2)
    assert context.activations == pytest.approx(alone.activations / 2, rel=0.001)
    assert context.weights == alone.weights


def test_terms_add_up_and_leave_out_what_is_zero() -> None:
    computed = of(SMALL, 256, 8)
    assert sum(size for _, size in computed.terms) == computed.total
    assert "weights cast to bf16" not in [what for what, _ in computed.terms]
    assert "weights cast to bf16" in [what for what, _ in of(SMALL, 256, 8, bf16=True).terms]
