"""Everything one rank trains with, put together from a plan: model, optimizer, data, step, checkpoints.

Used by `train` and by `warmup`. Must not know about the launcher: no heartbeats, no signals.
"""

from __future__ import annotations

import resource
from pathlib import Path

import torch

from payload.checkpoint import Checkpoints, Progress, Saved
from payload.corpus import Corpus
from payload.evaluate import held_out_loss
from payload.model import GPT
from payload.optimizer import make_optimizer, named_state
from payload.order import Order
from payload.ranks import Ranks, seed_everything
from payload.schedule import learning_rate
from payload.step import Mailbox, Record, Step
from trainctl.errors import TrainctlError
from trainctl.job.plan import Plan
from trainctl.job.rundir import RunDir


class Trainer:
    """One rank's share of the job. All ranks call the same methods in the same order."""

    def __init__(self, plan: Plan, ranks: Ranks, corpus: Corpus, run: RunDir) -> None:
        """run: where checkpoints go. Raises TrainctlError when the plan asks for what is not built."""
        check_plan(plan)
        train = plan.settings.train
        self.plan, self.ranks, self.corpus = plan, ranks, corpus
        self.progress = Progress()
        seed_everything(train.seed, 0)
        self.model = GPT(plan.settings.model, corpus.vocab, ranks.device)
        seed_everything(train.seed, 1 + ranks.rank)  # equal weights, different streams from here
        self.optimizer = make_optimizer(self.model, train)
        self.order = Order(
            windows=corpus.train_windows,
            seed=train.seed,
            micro_batch=train.micro_batch,
            accumulation=plan.accumulation,
            world=ranks.size,
        )
        shape = (plan.accumulation, train.micro_batch, corpus.seq_len + 1)
        self.autocast = autocast_dtype(plan)
        self.step = Step(
            self.model,
            self.optimizer,
            tokens_shape=shape,
            grad_clip=train.grad_clip,
            gated=plan.settings.rerun.mode == "validate",
            autocast=self.autocast,
        )
        self.step.rehearse()
        self.checkpoints = Checkpoints(
            run,
            ranks,
            named_state(self.model, self.optimizer),
            identity_digest=plan.identity_digest,
            corpus_digest=corpus.digest,
            keep=plan.settings.checkpoint.keep,
        )
        self._mailbox = Mailbox(self.step.record_width, ranks.device)
        # Two, because the copy of the step before may still be reading its own.
        self._host_tokens = torch.zeros(
            (2, *shape), dtype=torch.int64, pin_memory=ranks.device.type == "cuda"
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step trains on, over all ranks."""
        return self.order.global_batch * self.corpus.seq_len

    def read_data(self) -> list[int]:
        """Fill the input buffer for the next step. Returns the windows that this rank reads."""
        windows = self.order.windows_of(self.progress.samples, self.ranks.rank)
        host = self._host_tokens[(self.progress.step + 1) % 2]
        self.corpus.read(windows, host.numpy())
        self.step.tokens.copy_(host, non_blocking=True)
        ids: list[int] = windows.ravel().tolist()
        return ids

    def launch(self, *, stop: bool) -> float:
        """Enqueue the next step on what `read_data` read. Returns its learning rate."""
        self.progress = self.progress_at(self.progress.step + 1)
        rate = learning_rate(self.progress.step, self.plan.settings.train)
        self._mailbox.post(self.progress.step, self.step.run(rate=rate, stop=stop))
        return rate

    def collect(self, step: int) -> Record:
        """The record of one of the last two steps that were launched."""
        return self._mailbox.collect(step)

    def progress_at(self, step: int) -> Progress:
        """Progress after `step` steps, counted from where this process is now."""
        more = step - self.progress.step
        return Progress(
            step=step,
            samples=self.progress.samples + more * self.order.global_batch,
            tokens=self.progress.tokens + more * self.tokens_per_step,
        )

    def evaluate(self) -> float:
        """Held-out loss, nats per token."""
        train = self.plan.settings.train
        return held_out_loss(
            self.model,
            self.corpus,
            self.ranks,
            batches=train.eval_batches,
            micro_batch=train.micro_batch,
            autocast=self.autocast,
        )

    def is_sound(self) -> bool:
        """Whether every parameter and moment of every rank is finite. The host waits for the device.

        A step can be rejected because the parameters were damaged before it, and a checkpoint of those
        would verify, be the newest, and be loaded for ever.
        """
        state = named_state(self.model, self.optimizer)
        own = all(bool(torch.isfinite(value).all()) for value in state.values())
        return all(self.ranks.gathered(own))

    def save(self) -> Saved:
        return self.checkpoints.save(self.progress)

    def load(self, directory: Path) -> None:
        self.progress = self.checkpoints.load(directory)

    def peak_memory_bytes(self, *, reserved: bool = False) -> int:
        """Highest use so far: allocated on the GPU, or resident in this process.

        reserved: what the allocator took from the device for it, fragmentation included.
        """
        if self.ranks.device.type == "cuda":
            peak = torch.cuda.max_memory_reserved if reserved else torch.cuda.max_memory_allocated
            return peak(self.ranks.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check_plan(plan: Plan) -> None:
    """Raises TrainctlError for a layout that this trainer has not, or a batch that does not divide."""
    layout, train = plan.layout, plan.settings.train
    wanted = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep}
    if above_one := [f"{name} = {size}" for name, size in wanted.items() if size > 1]:
        raise TrainctlError(
            "layout-unsupported",
            f"{', '.join(above_one)}: the bundled trainer is data parallel only",
            hint="set them to 1 under [parallel], or launch another trainer with [job] script",
        )
    per_pass = train.micro_batch * layout.dp
    if plan.global_batch % per_pass:
        raise TrainctlError(
            "batch-divisibility",
            f"a global batch of {plan.global_batch:,} is not a multiple of "
            f"micro_batch {train.micro_batch:,} x DP {layout.dp:,} = {per_pass:,}",
            hint="change global_batch or micro_batch under [train]",
        )


def autocast_dtype(plan: Plan) -> torch.dtype | None:
    """What forward passes compute in, None for float32 throughout."""
    precision = plan.settings.train.precision
    capable = plan.device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if precision == "bf16" or (precision == "auto" and capable) else None
