import pytest
import torch

from payload.model import GPT
from payload.optimizer import decay_groups, make_optimizer, named_state, set_rate
from payload.schedule import learning_rate
from trainctl.job.settings import Model, Train

TRAIN = Train(steps=100, warmup_steps=10, lr=1.0, min_lr=0.1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(Model(layers=1, hidden=16, heads=2, seq_len=4), 20)


def with_gradients(model, scale=1.0):
    for number, weight in enumerate(model.parameters()):
        weight.grad = scale * torch.sin(torch.arange(weight.numel()) + number).view_as(weight)


@pytest.mark.parametrize(
    ("step", "expected"), [(1, 0.1), (5, 0.5), (10, 1.0), (55, 0.55), (100, 0.1), (130, 0.1)]
)
def test_schedule_warms_up_and_follows_half_a_cosine(step, expected):
    assert learning_rate(step, TRAIN) == pytest.approx(expected)  # 55 is half-way: the mean of both ends


def test_schedule_without_warm_up_starts_near_the_peak():
    assert learning_rate(1, Train(steps=1000, warmup_steps=0, lr=1.0, min_lr=0.0)) == pytest.approx(
        1, abs=1e-5
    )


def test_matrices_decay_and_norms_do_not(model):
    decayed, plain = decay_groups(model)
    assert len(decayed) + len(plain) == len(list(model.parameters()))
    assert any(w is model.embedding.weight for w in decayed)
    assert {id(w) for w in plain} == {id(p) for n, p in model.named_parameters() if "norm" in n}


def test_update_equals_plain_adamw_with_clipped_gradients(model):
    """The fused, gated, scaled path against torch's reference loop and clip_grad_norm_."""
    other = GPT(Model(layers=1, hidden=16, heads=2, seq_len=4), 20)
    other.load_state_dict(model.state_dict())
    optimizer = make_optimizer(model, TRAIN)
    optimizer.found_inf = torch.zeros(())
    decayed, plain = decay_groups(other)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    for _ in range(3):
        with_gradients(model)
        with_gradients(other)
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        assert norm > 1.5
        optimizer.grad_scale = norm.clamp(min=1)
        set_rate(optimizer, 0.01)
        optimizer.step()
        reference.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_raised_flag_leaves_every_bit_alone_and_lowering_it_lets_go(model):
    optimizer = make_optimizer(model, TRAIN)
    optimizer.found_inf = torch.ones(())
    with_gradients(model, float("nan"))
    before = {name: value.clone() for name, value in named_state(model, optimizer).items()}
    set_rate(optimizer, 0.01)
    optimizer.step()
    assert all(torch.equal(v, before[k]) for k, v in named_state(model, optimizer).items())
    optimizer.found_inf.zero_()
    with_gradients(model)
    optimizer.step()
    after = named_state(model, optimizer)
    assert not torch.equal(after["model.norm.weight"], before["model.norm.weight"])
    assert after["optimizer.norm.weight.step"] == 1


def test_state_is_complete_before_the_first_step_and_not_replaced_by_it(model):
    optimizer = make_optimizer(model, TRAIN)
    before = named_state(model, optimizer)
    assert len(before) == 4 * len(list(model.parameters()))
    with_gradients(model)
    optimizer.step()
    assert {k: v.data_ptr() for k, v in named_state(model, optimizer).items()} == {
        k: v.data_ptr() for k, v in before.items()
    }
