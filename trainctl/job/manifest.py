"""What makes a checkpoint durable: a manifest, written last, that names every file with its digest.

Standard library only, shared by the trainer (writes) and the launcher (verifies, chooses, prunes).
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainctl.job.rundir import checkpoint_dirs, fsync_directory, write_json

MANIFEST = "MANIFEST.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`files` maps a name relative to the directory to (size in bytes, sha256 in hex)."""

    step: int
    world: int
    identity_digest: str
    files: dict[str, tuple[int, str]]
    facts: dict[str, Any]  # tokens seen, seconds blocked, host, time: recorded, never trusted

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A directory that is named like a checkpoint and is not one, with the reason in words."""

    step: int
    path: Path
    reason: str


def digest_file(path: Path) -> tuple[int, str]:
    """(size in bytes, sha256 in hex)."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Make `directory` a checkpoint. Every file it names must already be on disk and synced."""
    fsync_directory(directory)
    write_json(
        directory / MANIFEST,
        {
            "version": _VERSION,
            "step": manifest.step,
            "world": manifest.world,
            "identity_digest": manifest.identity_digest,
            "files": {name: list(entry) for name, entry in sorted(manifest.files.items())},
            "facts": manifest.facts,
        },
    )
    fsync_directory(directory.parent)


def read_manifest(directory: Path) -> Manifest | str:
    """The manifest, or the reason in words why there is none to be trusted.

    Raises OSError when it is there and cannot be read: that says nothing about the checkpoint.
    """
    try:
        raw = json.loads((directory / MANIFEST).read_bytes())
    except FileNotFoundError:
        return "no manifest: the save was not finished"
    except ValueError:
        return "the manifest is torn"
    try:
        if raw["version"] != _VERSION:
            return f"manifest version {raw['version']}, this trainctl reads {_VERSION}"
        return Manifest(
            step=int(raw["step"]),
            world=int(raw["world"]),
            identity_digest=str(raw["identity_digest"]),
            files={str(k): (int(v[0]), str(v[1])) for k, v in raw["files"].items()},
            facts=dict(raw["facts"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return f"the manifest is not readable: {error!r}"


def verify(directory: Path, *, digests: bool = True) -> Manifest | str:
    """The manifest when every file is there with its size (and digest), else the reason in words.

    Raises OSError when a file is there and cannot be read.
    """
    manifest = read_manifest(directory)
    if isinstance(manifest, str):
        return manifest
    for name, (size, sha256) in manifest.files.items():
        path = directory / name
        try:
            found = os.stat(path).st_size
            if found != size:
                return f"{name} has {found:,} bytes, {size:,} expected"
            if digests and digest_file(path)[1] != sha256:
                return f"{name} does not match its digest"
        except FileNotFoundError:
            return f"{name} is missing"
    return manifest


def newest_verified(
    parent: Path, *, digests: bool = True
) -> tuple[tuple[Path, Manifest] | None, list[Rejected]]:
    """The newest checkpoint that verifies, and every newer one that does not, newest first.

    digests=False compares sizes only: for a progress report, never for a resume. Raises OSError when
    something cannot be read: a file system that does not answer must not make good checkpoints bad.
    """
    rejected: list[Rejected] = []
    for step, path in checkpoint_dirs(parent):
        manifest = verify(path, digests=digests)
        if isinstance(manifest, Manifest) and manifest.step == step:
            return (path, manifest), rejected
        reason = manifest if isinstance(manifest, str) else f"its manifest says step {manifest.step}"
        rejected.append(Rejected(step=step, path=path, reason=reason))
    return None, rejected


def to_prune(steps: list[int], keep: int) -> list[int]:
    """Which of these verified steps may go once the newest is durable. Pure; keeps at least two."""
    return sorted(steps, reverse=True)[max(2, keep) :]


def set_aside(rejected: Rejected) -> Path | None:
    """Rename a directory that does not verify out of the way, so that its step can be saved again.

    Returns the new path; None when the file system refuses (then it stays, and is skipped again).
    """
    number = 1
    while (target := rejected.path.with_name(f"rejected-{rejected.path.name}-{number}")).exists():
        number += 1
    try:
        os.rename(rejected.path, target)
    except OSError:
        return None
    return target
