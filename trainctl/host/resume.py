"""Which checkpoint a launch would resume from, every byte of it verified."""

from __future__ import annotations

from pathlib import Path

from trainctl.host.facts import RejectedCheckpoint, ResumeFacts
from trainctl.job.manifest import Manifest, newest_verified, verify
from trainctl.job.rundir import checkpoint_dirs


def read_resume(checkpoints: Path) -> ResumeFacts:
    newest, rejected = newest_verified(checkpoints)
    torn = tuple(RejectedCheckpoint(step=entry.step, reason=entry.reason) for entry in rejected)
    if newest is None:
        return ResumeFacts(rejected=torn)
    path, manifest = newest
    return ResumeFacts(
        step=manifest.step,
        name=path.name,
        world=manifest.world,
        identity_digest=manifest.identity_digest,
        size_bytes=manifest.size_bytes,
        present=sum(
            isinstance(verify(place, digests=False), Manifest) for _, place in checkpoint_dirs(checkpoints)
        ),
        rejected=torn,
    )
