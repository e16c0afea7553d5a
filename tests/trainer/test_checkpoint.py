"""Saving and loading in this process, as the only rank."""

import json
import random

import numpy as np
import pytest
import torch

from payload.checkpoint import Checkpoints, Progress
from payload.randomness import random_state, restore_random_state
from trainctl.errors import TrainctlError
from trainctl.job.manifest import MANIFEST, Manifest, newest_verified, verify
from trainctl.job.rundir import RunDir


@pytest.fixture
def state():
    return {
        "model.w": torch.arange(6.0),
        "optimizer.w.exp_avg": torch.ones(6),
        "optimizer.w.step": torch.ones(()),
    }


@pytest.fixture
def checkpoints(one_rank, state, tmp_path):
    def make(identity="a", keep=2, text="text"):
        return Checkpoints(
            RunDir(tmp_path), one_rank, state, identity_digest=identity, corpus_digest=text, keep=keep
        )

    return make


def test_saved_is_durable_and_loads_in_place(checkpoints, state):
    saved = checkpoints().save(Progress(step=5, samples=40, tokens=640))
    manifest = verify(saved.path)
    assert isinstance(manifest, Manifest)
    on_disk = {path.name for path in saved.path.iterdir()} - {MANIFEST}
    assert set(manifest.files) == on_disk  # nothing in it is without a digest
    assert saved.size_bytes == sum((saved.path / name).stat().st_size for name in on_disk)
    assert manifest.facts["tokens"] == 640
    weight = state["model.w"]
    weight.zero_()
    assert checkpoints().load(saved.path) == Progress(step=5, samples=40, tokens=640)
    assert torch.equal(weight, torch.arange(6.0))


def test_generators_of_all_kinds_come_back(checkpoints):
    saved = checkpoints().save(Progress(step=1))
    drawn = [(random.random(), np.random.random(), torch.rand(1).item()) for _ in range(2)]
    checkpoints().load(saved.path)
    assert (random.random(), np.random.random(), torch.rand(1).item()) == drawn[0]


def test_generator_state_survives_json():
    before = random_state(torch.device("cpu"))
    expected = (random.gauss(0, 1), np.random.normal(), torch.randn(3).tolist())
    restore_random_state(json.loads(json.dumps(before)), torch.device("cpu"))
    assert (random.gauss(0, 1), np.random.normal(), torch.randn(3).tolist()) == expected


def test_other_text_is_refused(checkpoints):
    """Order and held-out part mean something for the very tokens only."""
    saved = checkpoints(text="before").save(Progress(step=1))
    with pytest.raises(TrainctlError) as caught:
        checkpoints(text="after").load(saved.path)
    assert caught.value.ref == "checkpoint-data"
    assert "before" in caught.value.message
    assert "after" in caught.value.message


def test_an_old_checkpoint_that_stays_does_not_end_training(checkpoints, monkeypatch, capsys):
    made = checkpoints()
    for step in (1, 2):
        made.save(Progress(step=step))

    def refuse(path):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr("payload.checkpoint.remove_tree", refuse)
    assert made.save(Progress(step=3)).path.exists()
    assert "checkpoint of step 1 is not removed" in capsys.readouterr().out


def test_other_job_is_refused_by_name(checkpoints):
    saved = checkpoints("mine").save(Progress(step=1))
    with pytest.raises(TrainctlError) as caught:
        checkpoints("yours").load(saved.path)
    assert caught.value.ref == "checkpoint-identity"
    assert "mine" in caught.value.message
    assert "yours" in caught.value.message


@pytest.mark.parametrize("name", [MANIFEST, "progress.json"])
def test_directory_without_all_its_parts_is_refused(checkpoints, name):
    saved = checkpoints().save(Progress(step=1))
    (saved.path / name).unlink()
    with pytest.raises(TrainctlError) as caught:
        checkpoints().load(saved.path)
    assert caught.value.ref == "checkpoint-unreadable"


def test_moments_that_are_all_zero_are_refused(checkpoints, state):
    state["optimizer.w.exp_avg"].zero_()
    saved = checkpoints().save(Progress(step=1))
    with pytest.raises(TrainctlError) as caught:
        checkpoints().load(saved.path)
    assert caught.value.ref == "checkpoint-moments"


def test_torn_save_of_the_same_step_is_replaced(checkpoints, tmp_path):
    torn = RunDir(tmp_path).checkpoint(3)
    torn.mkdir(parents=True)
    (torn / "__0_9.distcp").write_bytes(b"torn")
    saved = checkpoints().save(Progress(step=3))
    assert isinstance(verify(saved.path), Manifest)
    assert not (torn / "__0_9.distcp").exists()


def test_old_ones_go_once_newer_ones_are_durable(checkpoints, tmp_path):
    run = RunDir(tmp_path)
    run.checkpoint(1).mkdir(parents=True)  # never finished: left for people to look at
    store = checkpoints(keep=2)
    for step in (2, 3, 4, 5):
        store.save(Progress(step=step))
    assert [step for step, _ in run.checkpoint_dirs()] == [5, 4, 1]
    found, _ = newest_verified(run.checkpoints)
    assert found is not None
    assert found[1].step == 5
    assert not list(run.checkpoints.glob(".*"))


def test_manifest_is_written_last(checkpoints, monkeypatch):
    def dies(*arguments):
        raise OSError("no space")

    monkeypatch.setattr("payload.checkpoint.write_manifest", dies)
    store = checkpoints()
    with pytest.raises(OSError):
        store.save(Progress(step=7))
    assert store.newest_step == 0
    directory = store._run.checkpoint(7)
    assert isinstance(verify(directory), str)
    assert (directory / "progress.json").exists()
