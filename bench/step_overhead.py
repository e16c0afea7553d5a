"""What heartbeat, step record and gate cost a whole step, against the same loop without them.

Both loops live in one process with equal models and take turns step by step, so that whatever else
the machine does meets both; the medians are compared. Aim: under 1 % at steps of about 20 ms.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from payload.model import GPT
from payload.optimizer import make_optimizer
from payload.step import Mailbox, Step
from trainctl import Reporter
from trainctl.job.protocol import ENV_ATTEMPT, ENV_RUN_DIR
from trainctl.job.rundir import RunDir
from trainctl.job.settings import Model, Train

WARM_STEPS = 20
STEPS = 600
AIM = 0.01
SHAPE = Model(layers=2, hidden=128, heads=4, seq_len=64)
MICRO_BATCH = 8


class Loop:
    """The trainer's step, with or without what makes it safe and visible."""

    def __init__(self, *, observed: bool) -> None:
        torch.manual_seed(0)
        model = GPT(SHAPE, 256, torch.device("cpu"))
        self.observed = observed
        self.step = Step(
            model,
            make_optimizer(model, Train()),
            tokens_shape=(1, MICRO_BATCH, SHAPE.seq_len + 1),
            grad_clip=1.0,
            gated=observed,
            autocast=None,
        )
        self.step.tokens.copy_(torch.randint(256, self.step.tokens.shape))
        self.mailbox = Mailbox(self.step.record_width, torch.device("cpu"))
        self.reporter = Reporter() if observed else None
        self.done = 0

    def one_step(self) -> float:
        """Seconds of one step, from its launch to the record of the step before being told."""
        started = time.perf_counter()
        self.done += 1
        record = self.step.run(rate=1e-4, stop=False)
        self.mailbox.post(self.done, record)
        if self.reporter is not None and self.done > 1:
            seen = self.mailbox.collect(self.done - 1)
            self.reporter.step(
                seen.step,
                loss=seen.loss,
                grad_norm=seen.grad_norm,
                lr=1e-4,
                seconds=0.02,
                tokens=MICRO_BATCH * SHAPE.seq_len,
                peak_memory_bytes=1 << 30,
                phases={"data": 0.0, "compute": 0.02, "wait": 0.0},
                sample_ids=list(range(MICRO_BATCH)),
                accepted=not seen.rejected,
            )
        return time.perf_counter() - started


def measure(rank: int, world: int, scratch: str) -> None:
    """One rank; rank 0 prints. Every rank takes the same turns, because the steps meet in collectives."""
    torch.set_num_threads(1)
    os.environ |= {
        ENV_RUN_DIR: f"{scratch}/run",
        ENV_ATTEMPT: "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
    }
    dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=world)
    plain, observed = Loop(observed=False), Loop(observed=True)
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(WARM_STEPS + STEPS):
        for loop in (plain, observed) if number % 2 else (observed, plain):
            seconds = loop.one_step()
            if number >= WARM_STEPS:
                took[loop.observed].append(seconds)
    dist.destroy_process_group()
    if rank:
        return
    without, with_all = (statistics.quantiles(took[observed], n=4) for observed in (False, True))
    print(
        f"step overhead   {world} rank{'s' if world > 1 else ' '} "
        f"{with_all[1] / without[1] - 1:+.2%} of a step of {without[1] * 1000:.1f} ms "
        f"(medians of {STEPS} steps each, taking turns; lower quartiles {with_all[0] / without[0] - 1:+.2%}; "
        f"aim under {AIM:.0%})",
        flush=True,
    )


def main() -> None:
    for world in (1, 2):
        with tempfile.TemporaryDirectory() as scratch:
            RunDir(Path(scratch, "run")).new_attempt()
            torch.multiprocessing.spawn(measure, (world, scratch), nprocs=world)
