"""What heartbeat, step record and gate cost a whole step, against the same loop without them.

Both loops live in one process with equal models and take turns in short blocks, so that whatever
else the machine does meets both. Aim: under 1 % at steps of about 20 ms.
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

BLOCK = 10
ROUNDS = 60
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

    def block(self) -> float:
        """Seconds of BLOCK steps."""
        started = time.perf_counter()
        for _ in range(BLOCK):
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


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        run = RunDir(Path(scratch, "run"))
        run.new_attempt()
        os.environ |= {ENV_RUN_DIR: str(run.path), ENV_ATTEMPT: "1", "RANK": "0", "WORLD_SIZE": "1"}
        dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=0, world_size=1)
        try:
            plain, observed = Loop(observed=False), Loop(observed=True)
            for loop in (plain, observed):
                loop.block()
            ratios, steps_s = [], []
            for number in range(ROUNDS):
                order = (plain, observed) if number % 2 else (observed, plain)
                took = {loop.observed: loop.block() for loop in order}
                ratios.append(took[True] / took[False])
                steps_s.append(took[False] / BLOCK)
        finally:
            dist.destroy_process_group()
    ratios.sort()
    overhead = statistics.median(ratios) - 1
    low, high = ratios[len(ratios) // 4] - 1, ratios[3 * len(ratios) // 4] - 1
    print(
        f"step overhead   {overhead:+.2%} of a step of {statistics.median(steps_s) * 1000:.1f} ms "
        f"(quartiles {low:+.2%} to {high:+.2%} over {ROUNDS} pairs of {BLOCK} steps, aim under {AIM:.0%})"
    )
