"""What a rank tells the launcher and the reader of its log, one step behind the device."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from payload.checkpoint import Saved
from payload.step import Record
from payload.trainer import Trainer
from trainctl import Reporter
from trainctl.job.protocol import Phase
from trainctl.job.units import human_bytes, human_count, human_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A step whose record is still on its way. started_s: `time.perf_counter()` at its begin.

    windows: samples that this rank reads in it. data_s, compute_s: host time to read and to enqueue.
    """

    step: int
    started_s: float
    rate: float
    windows: list[int]
    data_s: float
    compute_s: float


class Journal:
    """Step records and heartbeats of every rank; lines of text on rank 0."""

    def __init__(self, reporter: Reporter, trainer: Trainer) -> None:
        self._reporter = reporter
        self._trainer = trainer
        self._steps = trainer.plan.settings.train.steps
        self._log_interval = trainer.plan.settings.train.log_interval
        self._lately: list[float] = []  # seconds of the steps since the last line

    def settle(self, launched: Launched, *, ended_s: float | None) -> Record:
        """Read the record of a step and tell it. ended_s: when its place in the loop was over, None
        for now."""
        waiting = time.perf_counter()
        record = self._trainer.collect(launched.step)
        now = time.perf_counter()
        ended = now if ended_s is None else ended_s
        seconds = ended - launched.started_s
        fields: dict[str, Any] = {
            "step": launched.step,
            "time": time.time() - (now - ended),  # of the step's end, not of this record, which comes later
            "loss": record.loss,
            "grad_norm": record.grad_norm,
            "lr": launched.rate,
            "seconds": seconds,
            "tokens": self._trainer.tokens_per_step,
            "peak_memory_bytes": self._trainer.peak_memory_bytes(),
            "phases": {"data": launched.data_s, "compute": launched.compute_s, "wait": now - waiting},
            "sample_ids": launched.windows,
            "accepted": not record.rejected,
        }
        if record.rejected:
            self._reporter.record("step", **fields)  # on record, and not completed: no heartbeat
        else:
            self._reporter.step(**fields)
        self._lately.append(seconds)
        if launched.step % self._log_interval == 0 or record.rejected:
            step_s = sum(self._lately) / len(self._lately)
            pace = f"{step_s * 1000:.0f} ms" if step_s < 1 else human_seconds(step_s)
            self._lately.clear()
            self.say(
                f"step {launched.step:,}/{self._steps:,} · loss {record.loss:.3f} · lr {launched.rate:.1e} · "
                f"{human_count(self._trainer.tokens_per_step / step_s)} tok/s · {pace}/step"
            )
        return record

    def evaluate(self) -> None:
        self._reporter.phase(Phase.EVALUATE)
        started = time.perf_counter()
        loss = self._trainer.evaluate()
        corpus = self._trainer.corpus
        self._reporter.record(
            "evaluation",
            step=self._trainer.progress.step,
            loss=loss,
            unigram_entropy=corpus.unigram_entropy,
            seconds=time.perf_counter() - started,
        )
        self.say(
            f"held-out loss {loss:.2f} nats/token ({loss / math.log(2):.2f} bits) · "
            f"{corpus.unit}-frequency entropy of the text {corpus.unigram_entropy:.2f} nats"
        )

    def save(self) -> Saved:
        step = self._trainer.progress.step
        self._reporter.phase(Phase.CHECKPOINT)
        saved = self._trainer.save()
        self._reporter.record("checkpoint", step=step, seconds=saved.seconds, size_bytes=saved.size_bytes)
        self.say(
            f"checkpoint of step {step:,} · {human_bytes(saved.size_bytes)} in {human_seconds(saved.seconds)}"
        )
        return saved

    def restore(self, directory: Path) -> None:
        self._reporter.phase(Phase.RESTORE)
        started = time.perf_counter()
        self._trainer.load(directory)
        step, seconds = self._trainer.progress.step, time.perf_counter() - started
        self._reporter.record("restore", step=step, seconds=seconds)
        self.say(f"resumed from step {step:,} in {human_seconds(seconds)}")

    def stepping(self) -> None:
        """Steps follow, with their own time limit."""
        self._reporter.phase(Phase.STEP, self._trainer.progress.step)

    def say(self, line: str) -> None:
        if self._trainer.ranks.first:
            print(line, flush=True)
