"""`trainctl init`: a commented configuration file that fits this machine."""

from __future__ import annotations

import json
import os
import re
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainctl.cli import ui
from trainctl.errors import TrainctlError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_LOOK_S = 5.0  # longest wait for NVML
_MINUTE_S = 60
# What one core does in a training step in fp32, low on purpose: 50 to 70 GFLOP/s were measured on
# one Zen core for the sizes below, older cores do half of it.
_CORE_FLOPS = 25e9
_USEFUL_CORES = 16  # more do not speed up models as small as these
_MICRO_BATCH = 8

_TITLES = {
    "job": "what is run, and under which name",
    "cluster": "where it runs",
    "parallel": "how the world is divided: tp x pp x cp x dp ranks",
    "model": "the bundled GPT; with another trainer it describes that one, for the memory budget",
    "data": "what the bundled trainer reads",
    "train": "how the bundled trainer trains",
    "checkpoint": "when to save, and what to keep",
    "rerun": "what happens to a step with an impossible result",
    "preflight": "what must be right before anything starts",
    "watchdog": "how long silence may last",
    "restart": "what happens after a failure",
    "ledger": "where attempts are recorded, for MTBF and the checkpoint interval",
    "env": "environment variables, identical in every rank",
}
# Shown where a key has no default to show.
_EXAMPLES: Mapping[str, Any] = {
    "job.script": "train.py",
    "data.path": "corpus.txt",
    "data.tokenizer": "tokenizer.json",
}
_ENV_EXAMPLE = '#NCCL_DEBUG = "WARN"'
_COMMENT_COLUMN = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the file is fitted to. `gpu_bytes`: memory of each GPU, 0 if unreadable."""

    cores: int
    memory_bytes: int
    gpu_bytes: tuple[int, ...]

    @property
    def words(self) -> str:
        from trainctl.job.units import human_bytes

        seen = "no GPU"
        if self.gpu_bytes:
            count, least = len(self.gpu_bytes), min(self.gpu_bytes)
            seen = f"{count} GPU{'s' if count > 1 else ''}"
            seen += f" with {human_bytes(least)}" if least else " of unknown memory"
        return f"{self.cores} cores, {human_bytes(self.memory_bytes)} memory, {seen}"


def register(app: typer.Typer) -> None:
    app.command(name="init")(init)


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("trainctl.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Text file, folder or .bin file to train on.", show_default=False)
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="Another trainer instead of the bundled one.", show_default=False)
    ] = None,
) -> None:
    """Write a configuration file that fits this machine."""
    from trainctl.job.config import load_text
    from trainctl.job.rundir import write_atomic

    target = path / "trainctl.toml" if path.is_dir() else path
    if os.path.lexists(target) and not force:
        raise TrainctlError(
            "config-exists",
            f"{target} is there already",
            hint=f"trainctl plan {target} shows what it says; --force replaces it",
        )
    machine = look()
    values = fit(machine, target, data=data, script=script)
    text = render(values, heading=f"written by `trainctl init` for {machine.words}")
    settings = load_text(text, path=target, environ={}).settings
    try:
        write_atomic(target, text.encode())
    except OSError as error:
        reason = "its folder is a file" if isinstance(error, FileExistsError) else str(error.strerror).lower()
        raise TrainctlError(
            "config-unwritable",
            f"{target} cannot be written: {reason}",
            hint="name a place where this user may write",
        ) from None
    ui.say(f"wrote {target} for this machine: {machine.words}")
    what = settings.job.script or f"GPT of {settings.model.layers} layers x {settings.model.hidden}"
    over = f" on {settings.data.path}" if settings.data.path else ""
    ui.say(f"job {settings.job.name}: {what}{over}, {settings.train.steps:,} steps")
    named = "" if str(target) == "trainctl.toml" else f" {target}"
    ui.say(f"next: trainctl preflight{named}, then trainctl launch{named}")


def look() -> Machine:
    """A quick look at this machine. What cannot be read counts as not there."""
    import psutil

    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpu_bytes=_gpu_bytes(),
    )


def _gpu_bytes() -> tuple[int, ...]:
    from trainctl.host.deadline import read_all
    from trainctl.host.devices import usable_gpus
    from trainctl.host.facts import GpuFacts
    from trainctl.host.gpus import read_gpus, visible

    count = usable_gpus(os.environ)
    if count == 0:
        return ()
    answer = read_all({"gpus": read_gpus}, _LOOK_S)["gpus"]
    if answer["error"]:
        return (0,) * count  # preflight says what is wrong; a file for the smallest can be written
    gpus = visible(GpuFacts.model_validate(answer["value"]).devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return tuple(gpu.total_bytes or 0 for gpu in gpus) or (0,) * count


def fit(machine: Machine, target: Path, *, data: Path | None, script: Path | None) -> dict[str, Any]:
    """Dotted key -> value of everything that should differ from its default on this machine."""
    base = target.absolute().parent
    name = target.stem if target.stem != "trainctl" else script.stem if script else "gpt"
    values: dict[str, Any] = {"job.name": re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:100] or "gpt"}
    if script is not None:
        values["job.script"] = _relative(script, base, "script")
        if data is not None:
            values["data.path"] = _relative(data, base, "data")
        return values
    if data is not None:
        values["data.path"] = _relative(data, base, "data")
    else:
        # a text that every machine has; the files on top only, since packages may lie below
        values |= {"data.path": _standard_library(), "data.include": ["*.py"]}
    return values | (_fit_gpu(min(machine.gpu_bytes)) if machine.gpu_bytes else _fit_cpu(machine.cores))


def _fit_cpu(cores: int) -> dict[str, Any]:
    """The largest of these models that gets at least 300 steps in about a minute, and those steps."""
    from trainctl.job.memory import parameters, resolve_shape
    from trainctl.job.settings import Model

    budget = _MINUTE_S * _CORE_FLOPS * min(cores, _USEFUL_CORES)
    for layers, hidden, seq_len in ((6, 384, 256), (4, 256, 256), (4, 128, 256), (2, 128, 128)):
        model = Model(layers=layers, hidden=hidden, seq_len=seq_len)
        # 6 FLOPs per parameter and token: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1)
        steps = budget / (6 * parameters(resolve_shape(model)) * _MICRO_BATCH * seq_len)
        if steps >= 300:
            break
    return {
        "model.layers": layers,
        "model.hidden": hidden,
        "model.seq_len": seq_len,
        "train.steps": max(100, min(1000, int(steps) // 50 * 50)),
        "train.micro_batch": _MICRO_BATCH,
    }


def _fit_gpu(memory_bytes: int) -> dict[str, Any]:
    """The GPT-2 sizes, with micro-batches that leave most of the memory free."""
    gib = memory_bytes / 2**30
    if gib < 10:
        layers, hidden, heads, seq_len, micro_batch = 6, 384, 6, 512, 8
    else:
        layers, hidden, heads, seq_len = 12, 768, 12, 1024
        micro_batch = 32 if gib >= 38 else 8
    return {
        "model.layers": layers,
        "model.hidden": hidden,
        "model.heads": heads,
        "model.seq_len": seq_len,
        "train.steps": 1000,
        "train.micro_batch": micro_batch,
        "train.lr": 6e-4,
        "train.min_lr": 6e-5,
    }


def _relative(path: Path, base: Path, what: str) -> str:
    """As the file will say it: absolute paths as they are, others from where the file lies."""
    if not path.exists():
        raise TrainctlError(
            "init-path-missing",
            f"--{what} {path} does not exist",
            hint=f"name --{what} as seen from here, or leave it out and edit the file",
        )
    return str(path) if path.is_absolute() else os.path.relpath(path.absolute(), base)


def _standard_library() -> str:
    """The name for it, once its sources are seen: some distributions ship without them."""
    from trainctl.job.plan import STANDARD_LIBRARY

    folder = Path(sysconfig.get_path("stdlib"))
    if not any(folder.glob("*.py")):
        raise TrainctlError(
            "no-standard-library",
            f"no Python sources in {folder} to train on",
            hint="name a text file or a folder: trainctl init --data PATH",
        )
    return STANDARD_LIBRARY


def render(values: Mapping[str, Any], heading: str) -> str:
    """The file: every key there is, with its meaning; those not in `values` commented out."""
    from trainctl.job.settings import Settings

    lines = [
        f"# {heading}",
        "# a line that begins with # shows the default: take the # away to change it",
        "# `trainctl plan` shows every value and where it came from",
    ]
    for section, field in Settings.model_fields.items():
        lines += ["", f"# {_TITLES[section]}", f"[{section}]"]
        if section == "env":
            lines.append(_ENV_EXAMPLE)
            continue
        for key, inner in field.annotation.model_fields.items():  # type: ignore[union-attr]
            lines.append(_line(f"{section}.{key}", key, inner, values))
    return "\n".join(lines) + "\n"


def _line(name: str, key: str, field: FieldInfo, values: Mapping[str, Any]) -> str:
    if name in values:
        statement = f"{key} = {_toml(values[name])}"
    else:
        default = field.default if field.default is not None else _EXAMPLES[name]
        statement = f"#{key} = {_toml(default)}"
    return f"{statement:<{_COMMENT_COLUMN}}  # {field.description}"


def _toml(value: Any) -> str:
    """A value as TOML. The strings of JSON are strings of TOML, and so are its numbers and booleans."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(one) for one in value)}]"
    return json.dumps(value, ensure_ascii=False)
