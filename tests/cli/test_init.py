"""`trainctl init`: the file is valid, fits the machine, and never replaces another one unasked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomli
import typer
from typer.testing import CliRunner

from trainctl.cli import init
from trainctl.cli.init import Machine
from trainctl.errors import TrainctlError
from trainctl.job.config import load, load_text
from trainctl.job.plan import STANDARD_LIBRARY
from trainctl.job.settings import Settings

LAPTOP = Machine(cores=2, memory_bytes=16 << 30, gpu_bytes=())
SERVER = Machine(cores=128, memory_bytes=1 << 40, gpu_bytes=(80 << 30, 79 << 30))


def run(*arguments: str) -> str:
    """What `trainctl init` says. Errors are raised, as to `cli.app`."""
    app = typer.Typer()
    init.register(app)
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, TrainctlError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_writes_a_file_that_loads(folder: Path) -> None:
    said = run()
    loaded = load(Path("trainctl.toml"), {})
    assert loaded.settings.job.name == "gpt"
    assert loaded.settings.data.path == STANDARD_LIBRARY
    assert "next: trainctl preflight, then trainctl launch" in said
    assert f"{loaded.settings.train.steps:,} steps" in said


def test_never_replaces_a_file_unasked(folder: Path) -> None:
    Path("trainctl.toml").write_text("mine")
    with pytest.raises(TrainctlError, match=r"trainctl\.toml is there already") as caught:
        run()
    assert "--force" in caught.value.hint
    assert Path("trainctl.toml").read_text() == "mine"
    Path("dangling.toml").symlink_to("nowhere")
    with pytest.raises(TrainctlError, match="is there already"):
        run("dangling.toml")
    run("--force")
    assert load(Path("trainctl.toml"), {}).settings.job.name == "gpt"


def test_another_name_or_folder(folder: Path) -> None:
    (folder / "conf").mkdir()
    run("conf")
    said = run("conf/my run.toml")
    assert load(Path("conf/trainctl.toml"), {}).settings.job.name == "gpt"
    assert load(Path("conf/my run.toml"), {}).settings.job.name == "my-run"
    assert "next: trainctl preflight conf/my run.toml" in said


def test_paths_are_said_as_seen_from_the_file(folder: Path) -> None:
    (folder / "conf").mkdir()
    Path("corpus.txt").write_text("text")
    Path("train_it.py").write_text("")
    run("conf", "--data", "corpus.txt")
    assert load(Path("conf/trainctl.toml"), {}).settings.data.path == "../corpus.txt"
    run("conf", "--script", "train_it.py", "--force")
    settings = load(Path("conf/trainctl.toml"), {}).settings
    assert (settings.job.script, settings.job.name) == ("../train_it.py", "train_it")
    assert settings.data == Settings(job={"name": "x"}).data
    with pytest.raises(TrainctlError, match=r"--data nope\.txt does not exist"):
        run("other.toml", "--data", "nope.txt")
    assert not Path("other.toml").exists()


def test_a_place_that_cannot_be_written(folder: Path) -> None:
    Path("file").write_text("")
    with pytest.raises(TrainctlError, match=r"file/x.toml cannot be written: its folder is a file"):
        run("file/x.toml")


def test_every_key_is_shown_and_every_commented_value_is_the_default() -> None:
    text = init.render({"job.name": "x"}, heading="test")
    defaults = Settings(job={"name": "x"})
    examples = {"script": "train.py", "path": "corpus.txt", "tokenizer": "tokenizer.json"}
    text_without_marks = re.sub(r"(?m)^#(?! )", "", text)
    shown = load_text(text_without_marks, path=None, environ={})
    for section, table in shown.settings.model_dump().items():
        assert section == "env" or set(table) == set(tomli.loads(text_without_marks)[section])
        for key, value in table.items():
            expected = getattr(getattr(defaults, section), key, "WARN")
            assert value == (examples[key] if expected is None else expected), f"{section}.{key}"
    assert load_text(text, path=None, environ={}).settings == defaults


@pytest.mark.parametrize(
    ("machine", "heading"),
    [
        (LAPTOP, "2 cores, 16.0 GiB memory, no GPU"),
        (SERVER, "128 cores, 1.0 TiB memory, 2 GPUs with 79.0 GiB"),
        (Machine(cores=8, memory_bytes=1 << 36, gpu_bytes=(0,)), "1 GPU of unknown memory"),
    ],
)
def test_the_machine_in_words(machine: Machine, heading: str) -> None:
    assert heading in machine.words


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16, 64, 512])
def test_on_cpu_it_is_about_a_minute_at_the_assumed_speed(cores: int) -> None:
    from trainctl.job.memory import parameters, resolve_shape

    machine = Machine(cores=cores, memory_bytes=1 << 34, gpu_bytes=())
    values = init.fit(machine, Path("trainctl.toml"), data=None, script=None)
    settings = load_text(init.render(values, heading="x"), path=None, environ={}).settings
    model, train = settings.model, settings.train
    tokens = train.steps * train.micro_batch * model.seq_len
    flops = 6 * parameters(resolve_shape(model)) * tokens
    assert flops / (init._CORE_FLOPS * min(cores, init._USEFUL_CORES)) <= 60
    assert train.steps >= 300
    assert model.hidden % model.heads == 0


def test_on_a_gpu_the_model_grows_with_the_memory() -> None:
    sizes = []
    for gib in (0, 8, 24, 80):
        machine = Machine(cores=8, memory_bytes=1 << 36, gpu_bytes=(gib << 30,))
        values = init.fit(machine, Path("trainctl.toml"), data=None, script=None)
        settings = load_text(init.render(values, heading="x"), path=None, environ={}).settings
        assert settings.model.hidden % settings.model.heads == 0
        assert settings.train.min_lr < settings.train.lr
        sizes.append(settings.model.layers * settings.model.hidden * settings.train.micro_batch)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] < sizes[3]


def test_the_smallest_gpu_decides_and_looking_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    import trainctl.host.devices
    import trainctl.host.gpus

    def broken() -> None:
        raise RuntimeError("driver lost")

    monkeypatch.setattr(trainctl.host.devices, "usable_gpus", lambda environ: 2)
    monkeypatch.setattr(trainctl.host.gpus, "read_gpus", broken)
    assert init.look().gpu_bytes == (0, 0)


def test_a_python_without_its_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(init.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(TrainctlError, match="no Python sources") as caught:
        run()
    assert "--data" in caught.value.hint
