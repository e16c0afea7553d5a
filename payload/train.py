"""The bundled GPT trainer: `python -m payload.train`, one process per rank.

Started by trainctl, which says through the environment where the plan is and what to resume from.
The loop below reads in the order in which things happen.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import torch.distributed as dist

from payload.corpus import open_corpus
from payload.journal import Journal, Launched
from payload.ranks import join
from payload.step import Record
from payload.stopping import StopRequest, leave, leave_at_once
from payload.trainer import Trainer, check_plan
from trainctl import Reporter
from trainctl.errors import TrainctlError
from trainctl.exitcodes import PayloadExit
from trainctl.job.plan import Plan, read_plan
from trainctl.job.protocol import ENV_PLAN, Phase


def main() -> None:
    reporter = Reporter()
    try:
        code = train(reporter)
        reporter.phase(Phase.SHUTDOWN)
        dist.destroy_process_group()
    except BaseException as error:
        reporter.exception(error)
        leave_at_once(error)
    reporter.close()
    leave(code)


def train(reporter: Reporter) -> PayloadExit:
    """From the environment to an exit code."""
    stop = StopRequest(reporter.stop_requested)
    stop.listen()
    plan = planned()
    ranks = join(plan)
    corpus = open_corpus(plan, alive=lambda: reporter.phase(Phase.START))
    trainer = Trainer(plan, ranks, corpus, plan.run)
    journal = Journal(reporter, trainer)
    if reporter.resume_from:
        journal.restore(Path(reporter.resume_from))
    if trainer.progress.step >= plan.settings.train.steps:
        journal.say(f"step {trainer.progress.step:,} is the last one already")
        return PayloadExit.DONE

    # Cycles are collected where the loop rests anyway: a collection in the middle of a step makes
    # every other rank wait for this one.
    gc.collect()
    gc.freeze()
    gc.disable()
    return run_steps(trainer, journal, stop, reporter)


def run_steps(trainer: Trainer, journal: Journal, stop: StopRequest, reporter: Reporter) -> PayloadExit:
    """Train to the last step, a stop or a rejection. The host reads each record one step late."""
    train, save_steps = trainer.plan.settings.train, trainer.plan.save.steps
    pending: Launched | None = None
    stopping = False
    journal.stepping()
    while trainer.progress.step < train.steps:
        launched = launch(trainer, stop)
        if pending is not None:
            record = journal.settle(pending, ended_s=launched.started_s)
            if record.rejected:
                return give_up(trainer, journal, reporter, pending, record)
            stopping = record.stop
        pending = launched

        step = trainer.progress.step
        last = step == train.steps
        evaluating = last or (train.eval_interval > 0 and step % train.eval_interval == 0)
        saving = last or step % save_steps == 0
        if not (stopping or saving or evaluating):
            continue

        # A point that needs certainty: this step's record is read before anything is built on it.
        record = journal.settle(pending, ended_s=None)
        if record.rejected:
            return give_up(trainer, journal, reporter, pending, record)
        pending = None
        stopping = stopping or record.stop
        if saving or stopping:
            journal.save()  # first: a failure in the evaluation must not cost the interval
        if evaluating and (last or not stopping):
            journal.evaluate()
        if stopping and not last:
            reporter.verdict(PayloadExit.STOPPED, f"stopped on request at step {step:,}", step=step)
            journal.say(f"stopped on request at step {step:,}")
            return PayloadExit.STOPPED
        gc.collect()
        journal.stepping()
    return PayloadExit.DONE


def launch(trainer: Trainer, stop: StopRequest) -> Launched:
    """Read the data of the next step and enqueue it."""
    started = time.perf_counter()
    windows = trainer.read_data()
    read = time.perf_counter()
    rate = trainer.launch(stop=stop.wanted())
    return Launched(
        step=trainer.progress.step,
        started_s=started,
        rate=rate,
        windows=windows,
        data_s=read - started,
        compute_s=time.perf_counter() - read,
    )


def give_up(
    trainer: Trainer, journal: Journal, reporter: Reporter, launched: Launched, record: Record
) -> PayloadExit:
    """A step was rejected: every rank still has the parameters of the step before. Keep those."""
    good = record.step - 1
    who = (
        f"loss or gradient of rank {', '.join(map(str, record.invalid_ranks))}"
        if record.invalid_ranks
        else "norm of the averaged gradient"
    )
    reason = f"step {record.step:,} rejected: {who} is not finite; parameters are those of step {good:,}"
    sound = trainer.is_sound()
    if not sound:
        reason += ", and they are not finite either: they were damaged since the newest checkpoint"
    reporter.verdict(
        PayloadExit.REJECTED,
        reason,
        step=record.step,
        invalid_ranks=list(record.invalid_ranks),
        sample_ids=launched.windows,
    )
    journal.say(reason)
    trainer.progress = trainer.progress_at(good)
    if sound and good > trainer.checkpoints.newest_step:
        journal.save()
    return PayloadExit.REJECTED


def planned() -> Plan:
    """The plan that the environment names. Raises TrainctlError when it cannot be trained here."""
    path = os.environ.get(ENV_PLAN)
    if not path:
        raise TrainctlError(
            "no-plan",
            f"{ENV_PLAN} is not set: the bundled trainer is started by trainctl",
            hint="trainctl launch trainctl.toml",
        )
    plan = read_plan(Path(path))
    check_plan(plan)
    return plan


if __name__ == "__main__":
    main()
