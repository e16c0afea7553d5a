"""The step in this process, as the only rank: what it computes, and that it never waits."""

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import payload.step
from payload.corpus import open_corpus
from payload.journal import Journal
from payload.model import GPT
from payload.optimizer import make_optimizer
from payload.step import Mailbox, Step
from payload.stopping import StopRequest
from payload.train import launch, run_steps
from payload.trainer import Trainer
from trainctl import Reporter
from trainctl.job.settings import Model, Train

# What makes the host wait for a device: reading a value, or a shape that depends on values.
WAITS = {
    "aten._local_scalar_dense.default",
    "aten.is_nonzero.default",
    "aten.nonzero.default",
    "aten.masked_select.default",
    "aten.equal.default",
    "aten._unique2.default",
}


class Operations(TorchDispatchMode):
    """Counts every operation, and every copy from one device to another."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()
        self.moves = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.seen[str(func)] += 1
        if func is torch.ops.aten._to_copy.default:
            target = kwargs.get("device")
            if target is not None and torch.device(target) != args[0].device:
                self.moves.append((args[0].device, target))
        return func(*args, **kwargs)

    @property
    def waits(self):
        return sorted(WAITS & set(self.seen))


@pytest.fixture
def trainer(make_plan, one_rank):
    plan = make_plan(train={"global_batch": 4, "steps": 20})
    return Trainer(plan, one_rank, open_corpus(plan), plan.run)


def steps(trainer, count):
    """The loop between two certainty points, through the functions that the loop is made of."""
    stop = StopRequest(lambda: False)
    journal = Journal(Reporter(), trainer)
    before, settled = None, []
    for _ in range(count):
        launched = launch(trainer, stop)
        if before is not None:
            settled.append(journal.settle(before, ended_s=launched.started_s))
        before = launched
    return settled


def test_steady_state_never_waits_for_the_device(trainer):
    steps(trainer, 2)
    with Operations() as operations:
        assert len(steps(trainer, 4)) == 3
    assert operations.seen["aten._fused_adamw_.tensor_lr"] == 8  # 4 steps, 2 groups: the spy sees the step
    assert operations.seen["aten.embedding_dense_backward.default"] == 8  # and its backward
    assert operations.waits == []
    assert operations.moves == []


def test_the_spy_sees_a_wait():
    with Operations() as operations:
        float(torch.ones(()))
        torch.ones(2)[torch.tensor([True, False])]
        torch.ones(2).to("meta")
    assert operations.waits == ["aten._local_scalar_dense.default"]
    assert len(operations.moves) == 1


class Reducer(torch.nn.Module):
    """Stands in for DistributedDataParallel, whose C++ reducer reads real storage."""

    def __init__(self, model, **settings):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return self.model(*inputs)

    def no_sync(self):
        return nullcontext()

    def register_comm_hook(self, state, hook):
        self.hook = lambda gradient: hook(state, SimpleNamespace(buffer=lambda: gradient))


@pytest.fixture
def fake_step(monkeypatch):
    """A step of two ranks whose tensors have shapes and no values: reading one is an error."""
    monkeypatch.setattr(payload.step, "DistributedDataParallel", Reducer)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    with FakeTensorMode():
        model = GPT(Model(layers=2, hidden=32, heads=4, kv_heads=2, seq_len=16), 256)
        yield Step(
            model,
            make_optimizer(model, Train()),
            tokens_shape=(2, 2, 17),
            grad_clip=1.0,
            gated=True,
            autocast=None,
        )
    dist.destroy_process_group()


def test_step_runs_without_a_single_value_being_known(fake_step):
    for _ in range(2):
        record = fake_step.run(rate=1e-3, stop=False)
        fake_step._ddp.hook(fake_step._weights[0].grad)
    assert record.shape == (5 + 2,)
    with pytest.raises(DataDependentOutputException):
        float(record[0])


def test_record_of_a_step_is_read_after_the_next_one_was_launched(trainer, monkeypatch):
    trace = []
    for name in ("launch", "collect"):
        real = getattr(trainer, name)
        monkeypatch.setattr(
            trainer, name, lambda *a, _n=name, _r=real, **k: (trace.append(_n), _r(*a, **k))[1]
        )
    trainer.plan = trainer.plan.model_copy(
        update={"settings": trainer.plan.settings.model_copy(update={"train": Train(steps=4)})}
    )
    reporter = Reporter()
    run_steps(trainer, Journal(reporter, trainer), StopRequest(lambda: False), reporter)
    assert trace == ["launch", "launch", "collect", "launch", "collect", "launch", "collect", "collect"]


def test_micro_batches_accumulate_to_the_gradient_of_the_whole(one_rank):
    tokens = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(1))
    norms, losses = [], []
    for shape in ((1, 4, 9), (4, 1, 9)):
        torch.manual_seed(0)
        model = GPT(Model(layers=1, hidden=16, heads=2, seq_len=8), 50)
        optimizer = make_optimizer(model, Train())
        step = Step(model, optimizer, tokens_shape=shape, grad_clip=0.5, gated=True, autocast=None)
        mailbox = Mailbox(step.record_width, torch.device("cpu"))
        for number in (1, 2, 3):
            step.tokens.copy_(tokens.view(shape))
            mailbox.post(number, step.run(rate=1e-2, stop=False))
            record = mailbox.collect(number)
            norms.append(record.grad_norm)
            losses.append(record.loss)
        assert step.tokens.data_ptr() == step._x.data_ptr()
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-5)
    assert norms[:3] == pytest.approx(norms[3:], rel=1e-4)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("gated", [True, False])
def test_gate_is_left_out_when_validation_is_disabled(one_rank, gated):
    torch.manual_seed(0)
    model = GPT(Model(layers=1, hidden=16, heads=2, seq_len=8), 50)
    optimizer = make_optimizer(model, Train())
    step = Step(model, optimizer, tokens_shape=(1, 2, 9), grad_clip=0, gated=gated, autocast=None)
    model.norm.weight.register_hook(lambda grad: grad * float("nan"))
    mailbox = Mailbox(step.record_width, torch.device("cpu"))
    mailbox.post(1, step.run(rate=1e-2, stop=True))
    record = mailbox.collect(1)
    assert record.rejected == gated
    assert record.invalid_ranks == ()  # one rank has nobody to be told from
    assert record.stop
    assert bool(model.norm.weight.isnan().any()) == (not gated)


def test_gradient_norm_that_overflows_rejects_and_blames_no_rank(one_rank):
    """1e30 squared is beyond float32 while the gradient itself is finite."""
    torch.manual_seed(0)
    model = GPT(Model(layers=1, hidden=16, heads=2, seq_len=8), 50)
    step = Step(
        model, make_optimizer(model, Train()), tokens_shape=(1, 2, 9), grad_clip=1, gated=True, autocast=None
    )
    model.norm.weight.register_hook(lambda grad: torch.full_like(grad, 1e30))
    mailbox = Mailbox(step.record_width, torch.device("cpu"))
    mailbox.post(1, step.run(rate=1e-2, stop=False))
    record = mailbox.collect(1)
    assert record.rejected
    assert record.invalid_ranks == ()


def test_bf16_autocast_on_request_stays_close_to_float32(make_plan, one_rank):
    losses = []
    for precision in ("fp32", "bf16"):
        plan = make_plan(train={"precision": precision, "steps": 3})
        trainer = Trainer(plan, one_rank, open_corpus(plan), plan.run)
        losses.append([record.loss for record in steps(trainer, 4)])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
