"""Saving and loading what training has learned, for any number of ranks.

Tensors go through `torch.distributed.checkpoint`, which writes each replica's data once, spread
over the ranks. Beside them: one JSON file with the position in the data, and one per rank with its
random generators. The manifest with every digest is written last; without it there is no checkpoint.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from payload.randomness import random_state, restore_random_state
from payload.ranks import Ranks
from trainctl.errors import TrainctlError
from trainctl.job.manifest import Manifest, digest_file, read_manifest, to_prune, verify, write_manifest
from trainctl.job.rundir import RunDir, read_json, remove_tree, write_json

_PROGRESS = "progress.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """step: completed optimizer steps. samples and tokens: read by them, over all ranks."""

    step: int = 0
    samples: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """seconds: how long this rank was blocked. size_bytes: all files of all ranks."""

    path: Path
    seconds: float
    size_bytes: int


class Checkpoints:
    """The checkpoints of one run. Every method is called by all ranks together."""

    def __init__(
        self,
        run: RunDir,
        ranks: Ranks,
        state: dict[str, Tensor],
        *,
        identity_digest: str,
        corpus_digest: str,
        keep: int,
    ) -> None:
        """state: name -> live tensor, the same names on every rank."""
        self._run = run
        self._ranks = ranks
        self._state = state
        self._identity = identity_digest
        self._corpus = corpus_digest
        self._keep = keep
        self.newest_step = 0  # saved or loaded by this process; 0 is the fresh model, never saved

    def save(self, progress: Progress) -> Saved:
        """Return when the checkpoint is durable on every rank."""
        started = time.perf_counter()
        directory = self._run.checkpoint(progress.step)
        group, rank = self._ranks.checkpoint_group, self._ranks.rank
        if self._ranks.first and directory.exists():
            remove_tree(directory)  # left by an attempt that died in its save, or was rewound
        dist.barrier(group)
        writer = FileSystemWriter(directory, sync_files=True)
        save_tensors(self._state, storage_writer=writer, process_group=group)
        write_json(directory / _random_file(rank), random_state(self._ranks.device))
        if self._ranks.first:
            write_json(directory / _PROGRESS, {**asdict(progress), "corpus": self._corpus})
        files: dict[str, tuple[int, str]] = {}
        own = {name: digest_file(directory / name) for name in self._own(directory)}
        for part in self._ranks.gathered(own):
            files.update(part)
        manifest = Manifest(
            step=progress.step,
            world=self._ranks.size,
            identity_digest=self._identity,
            files=files,
            facts={
                "samples": progress.samples,
                "tokens": progress.tokens,
                "seconds_blocked": time.perf_counter() - started,
                "time": time.time(),
                "host": os.uname().nodename,
                "device": self._ranks.device.type,
                "torch": torch.__version__,
            },
        )
        if self._ranks.first:
            write_manifest(directory, manifest)
        dist.barrier(group)
        self.newest_step = progress.step
        if self._ranks.first:
            self._prune()  # the others wait for this rank in the next step, so it is part of the cost
        seconds = time.perf_counter() - started
        return Saved(path=directory, seconds=seconds, size_bytes=manifest.size_bytes)

    def load(self, directory: Path) -> Progress:
        """Fill the live tensors and this rank's generators. Raises TrainctlError when it does not fit.

        A rank that the checkpoint has never seen keeps the generators it was seeded with.
        """
        manifest = read_manifest(directory)
        raw = read_json(directory / _PROGRESS)
        if isinstance(manifest, str) or raw is None:
            reason = manifest if isinstance(manifest, str) else f"{_PROGRESS} is missing or torn"
            raise TrainctlError(
                "checkpoint-unreadable",
                f"{directory} is not a checkpoint: {reason}",
                hint="launch again: trainctl resumes from the newest one that verifies",
            )
        if manifest.identity_digest != self._identity:
            raise TrainctlError(
                "checkpoint-identity",
                f"{directory} was written by job {manifest.identity_digest}, this one is {self._identity}",
                context=("model, data or numerics of the configuration have changed",),
                hint="restore the settings, or launch with --fresh to start over",
            )
        if (corpus := raw.pop("corpus", None)) != self._corpus:
            raise TrainctlError(
                "checkpoint-data",
                f"{directory} was trained on other text: digest {corpus}, the tokens now have {self._corpus}",
                context=("files were added, removed or changed under data.path, or the tokenizer was",),
                hint="restore the text, or launch with --fresh: order and held-out part mean this text only",
            )
        reader = FileSystemReader(directory)
        load_tensors(self._state, storage_reader=reader, process_group=self._ranks.checkpoint_group)
        generators = read_json(directory / _random_file(self._ranks.rank))
        if generators is not None:
            restore_random_state(generators, self._ranks.device)
        progress = Progress(**raw)
        if progress.step and not self._has_moments():
            raise TrainctlError(
                "checkpoint-moments",
                f"{directory} is at step {progress.step:,} with every Adam moment zero",
                hint="resume from an older checkpoint: its optimizer state was not saved",
            )
        self.newest_step = progress.step
        return progress

    def _own(self, directory: Path) -> list[str]:
        """Names of the files that this rank has written."""
        rank = self._ranks.rank
        own = [path.name for path in directory.glob(f"__{rank}_*.distcp")] + [_random_file(rank)]
        return [*own, ".metadata", _PROGRESS] if self._ranks.first else own

    def _prune(self) -> None:
        """Remove verified checkpoints that are older than the `keep` newest. What does not verify is
        left for people to look at."""
        whole = {
            step: path
            for step, path in self._run.checkpoint_dirs()
            if step <= self.newest_step and _is_whole(path)
        }
        for step in to_prune(list(whole), self._keep):
            try:
                remove_tree(whole[step])
            except OSError as error:  # the save is durable: an old one that stays must not end training
                print(f"checkpoint of step {step:,} is not removed: {error}", flush=True)
        for half_removed in self._run.checkpoints.glob(".*.deleted"):
            shutil.rmtree(half_removed, ignore_errors=True)  # by a rank that was killed while it pruned

    def _has_moments(self) -> bool:
        moments = (value for name, value in self._state.items() if name.endswith(".exp_avg"))
        return any(bool(moment.any()) for moment in moments)


def _is_whole(path: Path) -> bool:
    try:
        return isinstance(verify(path, digests=False), Manifest)
    except OSError:
        return False  # not readable just now: left alone


def _random_file(rank: int) -> str:
    return f"random-rank-{rank}.json"
