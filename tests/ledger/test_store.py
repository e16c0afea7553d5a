"""The file format: append, survive tearing, merge."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainctl.errors import TrainctlError
from trainctl.ledger.store import AttemptEnd, AttemptStart, Event, append, read_ledger

Start = Callable[..., AttemptStart]
End = Callable[..., AttemptEnd]


def test_round_trip(tmp_path: Path, start: Start, end: End) -> None:
    ledger = tmp_path / "deep" / "ledger"
    events: list[Event] = [
        start(1, hosts=("n1", "n2"), resumed_step=7, resumed_from="step-00000007", restart_of=True),
        end(
            1, cause="deadlock", rank=3, buckets={"startup": 1.5}, failed_at=1.25, step_s=0.1, durable_step=4
        ),
        start(2),
    ]
    for event in events:
        append(ledger, event)
    view = read_ledger(ledger)
    assert view.problems == ()
    first, second = view.attempts
    assert [first.start, first.end, second.start] == events
    assert second.end is None
    assert [path.name for path in ledger.iterdir()] == ["run-a.jsonl"]


def test_absent_directory_is_an_empty_ledger(tmp_path: Path) -> None:
    view = read_ledger(tmp_path / "none")
    assert (view.attempts, view.problems, view.jobs) == ((), (), ())


def test_a_torn_last_line_loses_that_line_only(tmp_path: Path, start: Start, end: End) -> None:
    for event in (start(1), end(1), start(2)):
        append(tmp_path, event)
    path = tmp_path / "run-a.jsonl"
    os.truncate(path, path.stat().st_size - 20)
    append(tmp_path, start(3))
    append(tmp_path, end(3))
    view = read_ledger(tmp_path)
    assert [(a.start.attempt, a.end is not None) for a in view.attempts] == [(1, True), (3, True)]
    (problem,) = view.problems
    assert (problem.file, problem.line) == (path, 3)
    assert problem.reason == "torn: not a whole JSON object"


def test_tearing_at_any_byte_never_costs_another_line(tmp_path: Path, start: Start, end: End) -> None:
    for event in (start(1), end(1)):
        append(tmp_path, event)
    path = tmp_path / "run-a.jsonl"
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for size in range(first_line, len(whole) + 1):
        path.write_bytes(whole[:size])
        append(tmp_path, start(2))
        view = read_ledger(tmp_path)
        assert [a.start.attempt for a in view.attempts] == [1, 2]
        complete = size >= len(whole) - 1  # only the newline is missing: nothing is lost
        assert (view.attempts[0].end is not None) is complete
        assert len(view.problems) == (not complete and size > first_line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe garbage", "torn"),
        (b"[1, 2]", "not a record of trainctl"),
        (b'{"hello": 1}', "not a record of trainctl"),
        (b'{"event": "attempt_start", "version": 9}', "newer trainctl: version 9"),
        (b'{"event": "attempt_paused", "version": 1}', "attempt_paused"),
        (b'{"event": "attempt_start", "version": 1, "run_id": "x"}', "job: field required"),
    ],
)
def test_foreign_lines_are_named_with_their_reason(
    tmp_path: Path, start: Start, line: bytes, reason: str
) -> None:
    (tmp_path / "other.jsonl").write_bytes(b"\n" + line + b"\n")
    append(tmp_path, start(1))
    view = read_ledger(tmp_path)
    assert len(view.attempts) == 1
    (problem,) = view.problems
    assert problem.line == 2
    assert reason in problem.reason


def test_fields_of_a_newer_trainctl_are_ignored(tmp_path: Path, start: Start) -> None:
    values = {**start(1).model_dump(mode="json"), "moon_phase": "full"}
    (tmp_path / "x.jsonl").write_text(json.dumps(values) + "\n")
    assert read_ledger(tmp_path).attempts[0].start == start(1)


def test_what_was_seen_first_hand_counts_more_than_what_was_reconstructed(
    tmp_path: Path, start: Start, end: End
) -> None:
    for event in (start(1), end(1, time=1, reconstructed=True), end(1, cause="deadlock")):
        append(tmp_path, event)
    view = read_ledger(tmp_path)
    assert view.attempts[0].end == end(1, cause="deadlock")
    assert view.problems == ()


def test_an_end_without_its_start_is_reported(tmp_path: Path, end: End) -> None:
    append(tmp_path, end(4))
    view = read_ledger(tmp_path)
    assert view.attempts == ()
    assert "attempt 4 of run run-a, whose start is not recorded" in view.problems[0].reason


def test_jobs_are_told_apart(tmp_path: Path, start: Start) -> None:
    append(tmp_path, start(1))
    append(tmp_path, start(1, run_id="run-b", job="other"))
    view = read_ledger(tmp_path)
    assert view.jobs == ("job", "other")
    assert [a.start.run_id for a in view.of_job("other")] == ["run-b"]


@given(data=st.data())
@settings(max_examples=30, deadline=None)  # appends are synced: the disk decides how long they take
def test_merging_ledgers_commutes(start: Start, end: End, data: st.DataObject) -> None:
    keys = st.tuples(st.integers(1, 4), st.sampled_from(["run-a", "run-b"]))
    starts = st.builds(lambda k, t: start(k[0], run_id=k[1], time=t), keys, st.sampled_from([1.0, 2.0]))
    ends = st.builds(
        lambda k, t, r: end(k[0], run_id=k[1], time=t, reconstructed=r),
        keys,
        st.sampled_from([3.0, 4.0]),
        st.booleans(),
    )
    with TemporaryDirectory() as name:
        root = Path(name)
        for side in ("one", "two"):
            for event in data.draw(st.lists(starts | ends, max_size=8)):
                append(root / side, event)
        orders = (("one", "two"), ("two", "one"), ("one", "one", "two"))
        one_two, two_one, doubled = (read_ledger(_joined(root, order)).attempts for order in orders)
    assert one_two == two_one == doubled


def _joined(root: Path, sides: tuple[str, ...]) -> Path:
    """A ledger of the files of several, those of equal name one after the other."""
    target = root / "-".join(sides)
    target.mkdir()
    for side in sides:
        for path in (root / side).glob("*.jsonl"):
            with open(target / path.name, "ab") as file:
                file.write(path.read_bytes())
    return target


def test_a_run_id_that_is_no_file_name_is_a_bug(tmp_path: Path, start: Start) -> None:
    for run_id in ("../x", "", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="cannot be a file name"):
            append(tmp_path, start(1, run_id=run_id))


def test_unwritable_and_unreadable_places_are_expected_errors(tmp_path: Path, start: Start) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(TrainctlError, match="cannot be written"):
        append(file, start(1))
    with pytest.raises(TrainctlError, match="not a ledger"):
        read_ledger(file)


def test_a_full_disk_is_an_expected_error_and_loses_nothing_before(
    tmp_path: Path, start: Start, end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, start(1))
    real_write = os.write
    written = []

    def short_write(descriptor: int, data: bytes) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(1)
        return real_write(descriptor, data[:10])

    monkeypatch.setattr(os, "write", short_write)
    with pytest.raises(TrainctlError, match="No space left on device"):
        append(tmp_path, end(1))
    monkeypatch.undo()
    append(tmp_path, end(1))
    view = read_ledger(tmp_path)
    assert view.attempts[0].end == end(1)
    assert [p.line for p in view.problems] == [2]
