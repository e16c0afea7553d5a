"""A rehearsal: `python -m payload.warmup OUT_DIR`, one process per rank, as in `payload.train`.

Real steps on the real layout, a real checkpoint written, read back and compared. Rank 0 writes what
was measured to OUT_DIR/warmup.json. The run directory and the ledger are never touched.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from payload.corpus import open_corpus
from payload.optimizer import named_state
from payload.ranks import join
from payload.stopping import leave_at_once
from payload.train import planned
from payload.trainer import Trainer
from trainctl import Reporter
from trainctl.errors import TrainctlError
from trainctl.job.protocol import Phase
from trainctl.job.rundir import RunDir, remove_tree, write_json

_MAX_STEPS = 8  # the first is not timed: it allocates
_ENOUGH_S = 2.0


def main() -> None:
    try:
        warm_up(Path(sys.argv[1]).resolve())
        dist.destroy_process_group()
    except BaseException as error:
        leave_at_once(error)


def warm_up(out: Path) -> None:
    plan = planned()
    ranks = join(plan)
    reporter = Reporter()  # tokens of a large text take their time: that is no hang
    corpus = open_corpus(plan, alive=lambda: reporter.phase(Phase.START))
    trainer = Trainer(plan, ranks, corpus, RunDir(out))
    step_s = timed_steps(trainer)
    peaks = ranks.gathered(trainer.peak_memory_bytes(reserved=True))
    saved = trainer.save()
    load_s = read_back(trainer, saved.path)
    if ranks.first:
        remove_tree(saved.path)
        write_json(
            out / "warmup.json",
            {
                "step_s": step_s,
                "save_s": saved.seconds,
                "load_s": load_s,
                "checkpoint_bytes": saved.size_bytes,
                "peak_memory_bytes": peaks,
                "tokens_per_step": trainer.tokens_per_step,
            },
        )


def timed_steps(trainer: Trainer) -> float:
    """Median seconds of a step: two at least, more while they are short. Rank 0's clock decides for
    all, so that all ranks take the same number of steps."""
    durations: list[float] = []
    enough = False
    while len(durations) < 2 or not enough:
        started = time.perf_counter()
        trainer.read_data()
        trainer.launch(stop=False)
        record = trainer.collect(trainer.progress.step)
        durations.append(time.perf_counter() - started)
        if record.rejected:
            raise TrainctlError(
                "warmup-rejected",
                f"loss or gradient is not finite in warm-up step {record.step}",
                context=(f"ranks {record.invalid_ranks}, loss {record.loss}, norm {record.grad_norm}",),
                hint="check lr, precision and the data",
            )
        enough = len(durations) == _MAX_STEPS or trainer.ranks.gathered(sum(durations) > _ENOUGH_S)[0]
    return statistics.median(durations[1:])


def read_back(trainer: Trainer, checkpoint: Path) -> float:
    """Seconds to load the checkpoint over zeroed tensors. Raises TrainctlError when a bit differs."""
    live = named_state(trainer.model, trainer.optimizer)
    before = {name: value.to("cpu", copy=True) for name, value in live.items()}
    for value in live.values():
        value.zero_()
    started = time.perf_counter()
    trainer.load(checkpoint)
    seconds = time.perf_counter() - started
    if changed := [name for name, value in live.items() if not torch.equal(value.cpu(), before[name])]:
        raise TrainctlError(
            "warmup-checkpoint",
            f"{len(changed)} of {len(live)} tensors came back changed from a checkpoint, {changed[0]} first",
            hint="check the storage under the run directory",
        )
    return seconds


if __name__ == "__main__":
    main()
