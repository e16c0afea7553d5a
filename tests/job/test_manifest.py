"""Durable means: the manifest is complete and every file it names is there, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainctl.job.manifest import (
    MANIFEST,
    Manifest,
    digest_file,
    newest_verified,
    set_aside,
    to_prune,
    verify,
    write_manifest,
)


def make(parent: Path, step: int) -> Path:
    directory = parent / f"step-{step:08d}"
    directory.mkdir(parents=True)
    (directory / "shard-0").write_bytes(b"weights" * 100)
    (directory / "shard-1").write_bytes(str(step).encode())
    files = {name: digest_file(directory / name) for name in ("shard-0", "shard-1")}
    manifest = Manifest(step=step, world=2, identity_digest="id", files=files, facts={"tokens": 5})
    write_manifest(directory, manifest)
    return directory


def test_round_trip(tmp_path: Path) -> None:
    directory = make(tmp_path, 7)
    found = verify(directory)
    assert isinstance(found, Manifest)
    assert (found.step, found.world, found.identity_digest, found.facts) == (7, 2, "id", {"tokens": 5})
    assert found.size_bytes == 701


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / MANIFEST).unlink(), "not finished"),
        (lambda d: (d / MANIFEST).write_bytes((d / MANIFEST).read_bytes()[:-30]), "torn"),
        (lambda d: (d / MANIFEST).write_text("{}"), "not readable"),
        (lambda d: (d / MANIFEST).write_text('{"version": 99}'), "version 99"),
        (lambda d: (d / "shard-0").write_bytes(b"short"), "5 bytes, 700 expected"),
        (lambda d: (d / "shard-1").unlink(), "shard-1 is missing"),
        (lambda d: flip(d / "shard-0"), "shard-0 does not match its digest"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, reason: str) -> None:
    make(tmp_path, 10)
    damage(make(tmp_path, 20))
    found, rejected = newest_verified(tmp_path)
    assert found is not None
    assert found[1].step == 10
    assert [item.step for item in rejected] == [20]
    assert reason in rejected[0].reason


def test_what_cannot_be_read_is_not_judged(tmp_path: Path) -> None:
    """A file system that gives an error says nothing about the checkpoint: it must not be passed over."""
    make(tmp_path, 10)
    directory = make(tmp_path, 20)
    (directory / MANIFEST).unlink()
    (directory / MANIFEST).mkdir()  # reading it is an error that is not absence, for root too
    with pytest.raises(OSError, match="directory"):
        newest_verified(tmp_path)


def test_a_renamed_checkpoint_is_not_believed(tmp_path: Path) -> None:
    make(tmp_path, 5).rename(tmp_path / "step-00000009")
    found, rejected = newest_verified(tmp_path)
    assert found is None
    assert rejected[0].reason == "its manifest says step 5"


def test_without_digests_sizes_are_still_compared(tmp_path: Path) -> None:
    directory = make(tmp_path, 5)
    flip(directory / "shard-0")
    assert newest_verified(tmp_path, digests=False)[0] is not None
    (directory / "shard-0").write_bytes(b"")
    assert newest_verified(tmp_path, digests=False)[0] is None


def test_set_aside_never_collides(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        (make(tmp_path, 5) / MANIFEST).unlink()
        _, rejected = newest_verified(tmp_path)
        names.append(set_aside(rejected[0]).name)
    assert names == ["rejected-step-00000005-1", "rejected-step-00000005-2"]
    assert newest_verified(tmp_path) == (None, [])


@given(st.sets(st.integers(0, 10**9)), st.integers(-3, 10))
def test_pruning_keeps_the_newest_and_never_fewer_than_two(steps: set[int], keep: int) -> None:
    doomed = to_prune(list(steps), keep)
    kept = steps - set(doomed)
    assert len(kept) == min(len(steps), max(2, keep))
    assert not doomed or max(doomed) < min(kept)
