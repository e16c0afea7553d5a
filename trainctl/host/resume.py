"""Which checkpoint a launch would resume from, every byte of it verified."""

from __future__ import annotations

from pathlib import Path

from trainctl.host.facts import RejectedCheckpoint, ResumeFacts
from trainctl.job.manifest import newest_verified


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
        rejected=torn,
    )
