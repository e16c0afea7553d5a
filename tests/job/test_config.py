"""Precedence, sources, and every way in which a configuration can be wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from trainctl.errors import TrainctlError
from trainctl.exitcodes import ExitCode
from trainctl.job.config import Loaded, load
from trainctl.job.settings import Settings

JOB = '[job]\nname = "gpt"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "trainctl.toml"
    path.write_text(text)
    return path


def problems(
    path: Path | None, environ: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
) -> list[str]:
    """What is wrong, without the name of the folder."""
    with pytest.raises(TrainctlError) as caught:
        load(path, environ or {}, overrides)
    error = caught.value
    assert error.exit_code == ExitCode.USAGE
    assert error.hint
    folder = f"{path.parent}/" if path else "//"
    return [line.replace(folder, "") for line in error.context or (error.message,)]


def loaded(
    folder: Path, text: str, environ: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
) -> Loaded:
    return load(write(folder, text), environ or {}, overrides)


def test_later_layers_win_and_every_value_knows_its_source(tmp_path: Path) -> None:
    got = loaded(
        tmp_path,
        JOB + "[train]\nsteps = 1\nlr = 0.1\nseed = 1\n",
        {"TRAINCTL_TRAIN__LR": "0.2", "TRAINCTL_TRAIN__SEED": "2", "TRAINCTL_RUN_DIR": "ignored", "LR": "9"},
        ["train.seed=3", "train.seed=4"],
    )
    train = got.settings.train
    assert (train.steps, train.lr, train.seed, train.micro_batch) == (1, 0.2, 4, 8)
    assert got.sources["train.steps"] == "trainctl.toml:4"
    assert got.sources["train.lr"] == "environment TRAINCTL_TRAIN__LR"
    assert got.sources["train.seed"] == "flag --set train.seed"
    assert got.sources["train.micro_batch"] == "default"
    assert got.base_dir == tmp_path


def test_every_key_has_a_source(tmp_path: Path) -> None:
    got = loaded(tmp_path, JOB + '[env]\nNCCL_DEBUG = "WARN"\n')
    dump = got.settings.model_dump()
    assert set(got.sources) == {f"{section}.{key}" for section, table in dump.items() for key in table}
    assert got.sources["env.NCCL_DEBUG"] == "trainctl.toml:4"


def test_relative_to_the_file_and_not_to_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep", JOB)
    monkeypatch.chdir(tmp_path)
    assert load(Path("deep/trainctl.toml"), {}).base_dir == tmp_path / "deep"


def test_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    got = load(None, {"TRAINCTL_JOB__NAME": "x"}, [])
    assert (got.settings, got.path, got.base_dir) == (Settings(job={"name": "x"}), None, tmp_path)
    assert problems(None)[0].startswith("job.name is missing, expected letters, digits")


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("job.name=123", "job", "name", "123"),
        ("job.name = spaced ", "job", "name", "spaced"),
        ("job.script=007", "job", "script", "007"),
        ('job.script="a b.py"', "job", "script", "a b.py"),
        ("ledger.dir=true", "ledger", "dir", "true"),
        ('job.args=["--x", "1"]', "job", "args", ("--x", "1")),
        ("train.lr=3e-4", "train", "lr", 3e-4),
        ("train.lr=1", "train", "lr", 1.0),
        ("train.global_batch=auto", "train", "global_batch", "auto"),
        ("train.global_batch=1_024", "train", "global_batch", 1024),
        ("preflight.warmup=false", "preflight", "warmup", False),
        ("train.precision=bf16", "train", "precision", "bf16"),
    ],
)
def test_text_from_outside_becomes_what_the_field_wants(
    override: str, section: str, key: str, value: object
) -> None:
    settings = load(None, {"TRAINCTL_JOB__NAME": "x"}, [override]).settings
    assert getattr(getattr(settings, section), key) == value
    name, _, text = override.partition("=")
    variable = f"TRAINCTL_{name.strip().replace('.', '__').upper()}"
    settings = load(None, {"TRAINCTL_JOB__NAME": "x", variable: text.strip()}).settings
    assert getattr(getattr(settings, section), key) == value


def test_variables_for_the_ranks_keep_their_case_and_their_text() -> None:
    environ = {"TRAINCTL_JOB__NAME": "x", "TRAINCTL_ENV__NCCL_DEBUG": "3", "TRAINCTL_ENV__a__B": "1"}
    settings = load(None, environ, ["env.OMP_NUM_THREADS=4"]).settings
    assert settings.env == {"NCCL_DEBUG": "3", "a__B": "1", "OMP_NUM_THREADS": "4"}


def test_a_line_break_cannot_smuggle_in_a_second_key() -> None:
    environ = {"TRAINCTL_JOB__NAME": "x", "TRAINCTL_TRAIN__STEPS": "3\nseed = 4"}
    assert problems(None, environ) == [
        'environment TRAINCTL_TRAIN__STEPS: train.steps: found "3\\nseed = 4" (text), '
        "expected a whole number of at least 1"
    ]


# What stands below a good [job] of two lines -> the line, and what is said about it.
WRONG = {
    "[train]\nlearning_rate = 1": "4: train.learning_rate is not a key of [train]; nearest is lr",
    "[train]\nbatch_size = 1": "4: train.batch_size is not a key of [train]; nearest is micro_batch",
    "[train]\nmax_steps = 1": "4: train.max_steps is not a key of [train]; nearest is steps",
    "[train]\nnum_layers = 1": "4: train.num_layers is not a key of [train]; nearest is model.layers",
    "[train]\nseq_len = 1": "4: train.seq_len is not a key of [train]; nearest is model.seq_len",
    "[model]\nlayrs = 1": "4: model.layrs is not a key of [model]; nearest is layers",
    "[rerun]\nzzz = 1": "4: rerun.zzz is not a key of [rerun]; expected one of mode",
    "[trian]\nlr = 1": "3: [trian] is not a section; nearest is [train]",
    "[optimizer]": "3: [optimizer] is not a section; nearest is [train]",
    "[[train]]\nlr = 1": "3: train: found a list of tables, expected one table, [train]",
    "[train]\nsteps = 1.0": "4: train.steps: found 1.0 (number), expected a whole number of at least 1",
    '[train]\nsteps = "1"': '4: train.steps: found "1" (text), expected a whole number of at least 1',
    "[train]\nsteps = true": "4: train.steps: found true, expected a whole number of at least 1",
    "[train]\n\nlr = 0": "5: train.lr: found 0 (whole number), expected a number above 0",
    "[train]\nlr = nan": "4: train.lr: found nan (not finite), expected a number above 0",
    "[train]\nbeta1 = 1.0": "4: train.beta1: found 1.0 (number), expected a number from 0 to below 1",
    "[data]\neval_fraction = 0.5": "4: data.eval_fraction: found 0.5 (number), "
    "expected a number above 0 and below 0.5",
    "[cluster]\nrendezvous_port = 70000": "4: cluster.rendezvous_port: found 70000 (whole number), "
    "expected a whole number from 0 to 65535",
    "[parallel]\ndp = 0": "4: parallel.dp: found 0 (whole number), "
    'expected a whole number of at least 1, or "auto"',
    '[checkpoint]\nformula = "yong"': '4: checkpoint.formula: found "yong" (text), '
    'expected "young", "daly" or "exact"',
    '[data]\ninclude = "*.py"': '4: data.include: found "*.py" (text), '
    'expected a list of text, such as ["a", "b"]',
    '[data]\ninclude = [\n"*.py",\n3]': "4: data.include[1]: found 3 (whole number), expected text in quotes",
    "[data]\npath = 2020-01-01": "4: data.path: found 2020-01-01 (date or time), expected text in quotes",
    "[env]\nN = 4": "4: env.N: found 4 (whole number), expected text in quotes, without the character NUL",
    '[env]\n"A=B" = "x"': "4: env.A=B: the name of a variable has letters, digits and _, and no digit first",
    "[restart]\nmax_backoff_s = 0.5": "3: restart: max_backoff_s 0.5 is below backoff_s 1.0",
    '[[preflight.waive]]\ncode = "TC103"': "3: preflight.waive[0].reason is missing, "
    "expected text of at least 3 characters",
    '[[preflight.waive]]\nreason = "why"\ncode = "103"': "5: preflight.waive[0].code: "
    'found "103" (text), expected the code of a finding, such as "TC103"',
    '[[preflight.waive]]\nreason = "why"\ncode = "TC103"\nx = 1': "6: preflight.waive[0].x "
    "is not a key; expected one of code, reason",
}


@pytest.mark.parametrize(("text", "problem"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(write(tmp_path, JOB + text)) == [f"trainctl.toml:{problem}"]


def test_a_key_before_the_first_section(tmp_path: Path) -> None:
    assert problems(write(tmp_path, "lr = 1\n" + JOB)) == [
        "trainctl.toml:1: lr stands outside any section; nearest is train.lr"
    ]


def test_all_problems_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[train]\nlr = -1\nsteps = 0\n[zzz]\n[job]\nnam = 'x'\n")
    found = problems(
        path, {"TRAINCTL_MODEL__LAYERS": "x", "TRAINCTL_TRIAN__LR": "1"}, ["train.seed=-1", "seed"]
    )
    assert [line.split(": ")[0] for line in found] == [
        "trainctl.toml:2",
        "trainctl.toml:3",
        "trainctl.toml:4",
        "trainctl.toml:5",  # [job] lacks its name
        "trainctl.toml:6",
        "environment TRAINCTL_MODEL__LAYERS",
        "flag --set train.seed",
        "environment TRAINCTL_TRIAN__LR",
        "flag --set seed",
    ]


@pytest.mark.parametrize("override", ["seed", "seed=1", "train.=1", ".seed=1", "train.seed"])
def test_a_flag_that_says_nothing_is_a_problem_by_itself(tmp_path: Path, override: str) -> None:
    assert problems(write(tmp_path, JOB), {}, [override]) == [
        f"flag --set {override}: expected section.key=value, like train.lr=3e-4"
    ]


def test_a_rule_over_two_keys_names_the_override_that_broke_it(tmp_path: Path) -> None:
    assert problems(write(tmp_path, JOB), {}, ["restart.backoff_s=90"]) == [
        "flag --set restart.backoff_s: restart: max_backoff_s 60.0 is below backoff_s 90.0"
    ]


@pytest.mark.parametrize(
    ("text", "ref", "message"),
    [
        ("[job\n", "config-syntax", ":1:5: not valid TOML, expected ']' at the end of a table declaration"),
        ("[a]\nlr = fast\n", "config-syntax", ":2:6: not valid TOML, invalid value"),
        ("[a]\nx = [1,\n", "config-syntax", ":2:8: not valid TOML, invalid value"),
        ("[a]\nlr = 1\n\nlr = 2\n", "config-syntax", ":4: a.lr is given twice, first in line 2"),
        ("[a]\n[b]\n[a]\n", "config-syntax", ":3: a is given twice, first in line 1"),
    ],
)
def test_broken_toml(tmp_path: Path, text: str, ref: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TrainctlError) as caught:
        load(path, {})
    assert (caught.value.ref, caught.value.message) == (ref, f"{path}{message}")


def test_the_place_of_a_syntax_error_is_shown(tmp_path: Path) -> None:
    with pytest.raises(TrainctlError) as caught:
        load(write(tmp_path, "[a]\nlr = fast\n"), {})
    assert caught.value.context == ("lr = fast", "     ^")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TrainctlError) as caught:
        load(tmp_path / "trainctl.toml", {})
    assert caught.value.ref == "config-missing"
    assert caught.value.hint.startswith("trainctl init ")
    with pytest.raises(TrainctlError, match="is a directory, expected a configuration file"):
        load(tmp_path, {})
    (tmp_path / "latin.toml").write_bytes(b"[job]\nname = 'caf\xe9'\n")
    with pytest.raises(TrainctlError, match=r"latin.toml:2: found the byte 0xe9, expected UTF-8 text"):
        load(tmp_path / "latin.toml", {})
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    with pytest.raises(TrainctlError, match=r"loop\.toml cannot be read: too many levels"):
        load(tmp_path / "loop.toml", {})


def test_windows_line_ends_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "trainctl.toml"
    path.write_bytes(b'\xef\xbb\xbf[job]\r\nname = "x"\r\n[train]\r\nlr = 1\r\n')
    assert load(path, {}).sources["train.lr"] == "trainctl.toml:4"
