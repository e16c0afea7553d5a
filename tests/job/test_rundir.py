"""The run directory: nothing half-written is ever read, nothing is shared, nothing is lost."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainctl.job import rundir
from trainctl.job.rundir import RunDir, read_json, read_json_lines, remove_tree, write_atomic, write_json


def test_write_atomic_replaces_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_json(path, {"x": 1})
    write_json(path, {"x": 2})
    assert read_json(path) == {"x": 2}
    assert os.listdir(path.parent) == ["b.json"]


def test_a_write_that_fails_keeps_the_old_and_leaves_no_scrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b.json"
    write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rundir.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["b.json"]


@pytest.mark.parametrize("raw", [b"", b'{"x": 1', b"[1]", b"\xff\xfe", b"null"])
def test_torn_json_is_none(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x").write_bytes(raw)
    assert read_json(tmp_path / "x") is None
    assert read_json(tmp_path / "absent") is None


def test_a_torn_line_loses_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2\n[3]\n{"a": 4}\n{"a": 5')
    assert list(read_json_lines(path)) == [{"a": 1}, {"a": 4}]
    assert list(read_json_lines(tmp_path / "absent")) == []


def test_attempts_are_never_shared(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: run.new_attempt().number, range(40)))
    assert sorted(numbers) == list(range(1, 41))
    assert [attempt.number for attempt in run.attempts()] == list(range(1, 41))
    assert run.attempts()[0].logs.is_dir()


def test_set_aside_finds_a_free_name(tmp_path: Path) -> None:
    for _ in range(2):
        run = RunDir(tmp_path / "job")
        run.new_attempt()
        run.set_aside()
    assert sorted(os.listdir(tmp_path)) == ["job.old-1", "job.old-2"]


def test_checkpoints_are_found_newest_first_and_nothing_else_is(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for name in (
        "step-00000010",
        "step-00000200",
        "step-100000000",
        "step-7",
        "rejected-step-00000300-1",
        ".x",
    ):
        (run.checkpoints / name).mkdir(parents=True)
    assert [step for step, _ in run.checkpoint_dirs()] == [100_000_000, 200, 10]
    assert run.checkpoint(10).name == "step-00000010"


def test_ranks_of_an_attempt(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).new_attempt()
    for name in (
        "rank-0.json",
        "rank-11.json",
        "rank-2.json",
        "rank-2.report.json",
        "agent.json",
        "rank-x.json",
    ):
        (attempt.path / "exits" / name).touch()
    assert attempt.ranks() == [0, 2, 11]
    assert attempt.ranks("nothing") == []


def test_remove_tree(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    remove_tree(tmp_path / "a")
    assert os.listdir(tmp_path) == []
