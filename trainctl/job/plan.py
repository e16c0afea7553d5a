"""The plan: settings with nothing left open. Written to plan.json and read by checks and trainer.

Pure value. `run.planning` makes it from settings, host facts and the ledger.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from trainctl.errors import TrainctlError
from trainctl.job.layout import Layout
from trainctl.job.rundir import RunDir, write_atomic
from trainctl.job.secrets import HIDDEN, is_secret
from trainctl.job.settings import Settings

# A text that every machine has: the sources of the Python that runs the ranks.
STANDARD_LIBRARY = "@stdlib"


# How the basis of a number begins that nobody measured yet.
ASSUMED = "assumed"


class SaveInterval(BaseModel):
    """`save_steps` with everything that decided it. Times in seconds.

    Each `*_basis` says in words where the number came from, for instance "9 interruptions in
    203 h", "measured by the warm-up", "assumed, nothing recorded yet".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    basis: str  # "config", "young", "daly", "exact"
    mtbf_s: float
    mtbf_basis: str
    mtbf_low_s: float  # 95 % interval of the recorded MTBF; equal to 0 when nothing bounds it
    mtbf_high_s: float  # inf is written as 0: unbounded
    failures: int
    cost_s: float
    cost_basis: str
    step_s: float
    step_basis: str
    best_steps: int  # what the formula says, also when the configuration says otherwise
    overhead: float  # expected share of time lost to saves and redone steps at `steps`
    best_overhead: float


class Plan(BaseModel):
    """What will be run. Every "auto" of the settings is resolved beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = 1
    settings: Settings
    sources: dict[str, str]  # dotted key -> "default", "FILE:LINE", "environment NAME", "flag"
    config_path: str
    base_dir: str  # relative paths of the configuration start here
    run_dir: str
    ledger_dir: str
    identity_digest: str  # model, data and numerics: a checkpoint fits only its own
    config_digest: str  # everything
    layout: Layout
    device: str  # "cpu" or "cuda"
    threads: int  # CPU threads of a rank
    grace_s: float
    save: SaveInterval

    @property
    def run(self) -> RunDir:
        return RunDir(Path(self.run_dir))

    @property
    def bundled(self) -> bool:
        """Whether the bundled GPT trainer is run."""
        return self.settings.job.script is None

    @property
    def global_batch(self) -> int:
        """Sequences in one optimizer step over all ranks."""
        return resolve_global_batch(self.settings, self.layout)

    @property
    def accumulation(self) -> int:
        """Micro-batches of one rank in one step. Item 6 of preflight proves that it divides."""
        return max(1, self.global_batch // (self.settings.train.micro_batch * self.layout.dp))

    @property
    def data_path(self) -> Path | None:
        """Where the text is; None when none is configured (another trainer)."""
        wanted = self.settings.data.path
        if wanted == STANDARD_LIBRARY:
            return Path(sysconfig.get_path("stdlib"))
        return None if wanted is None else self.resolve(wanted)

    def resolve(self, path: str) -> Path:
        """A path of the configuration file, made absolute."""
        return Path(self.base_dir, path).resolve()

    def public(self) -> Plan:
        """The plan as it may be shown and stored: secrets of [env] are for the ranks' environment only."""
        shown = {name: HIDDEN if is_secret(name) else value for name, value in self.settings.env.items()}
        return self.model_copy(update={"settings": self.settings.model_copy(update={"env": shown})})

    def write(self, path: Path) -> None:
        write_atomic(path, (self.public().model_dump_json(indent=2) + "\n").encode())


def resolve_global_batch(settings: Settings, layout: Layout) -> int:
    """Sequences in one optimizer step; "auto" is one micro-batch for every data parallel rank."""
    wanted = settings.train.global_batch
    return settings.train.micro_batch * layout.dp if wanted == "auto" else wanted


def read_plan(path: Path) -> Plan:
    """The plan in `path`. Raises TrainctlError when it is absent or of another version."""
    try:
        return Plan.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TrainctlError(
            "plan-unreadable",
            f"{path} is not a plan of this trainctl",
            context=(str(error).splitlines()[0],),
            hint="launch with --fresh to start the run over, the old one is kept beside it",
        ) from None


# What a checkpoint's meaning depends on. Restart limits, paths, evaluation or the number of steps
# may change between attempts of one run; these may not.
_IDENTITY = {
    "model": None,
    "data": ("path", "include", "tokenizer", "eval_fraction"),
    "train": (
        "micro_batch", "global_batch", "lr", "min_lr", "warmup_steps", "weight_decay",
        "beta1", "beta2", "adam_eps", "grad_clip", "precision", "seed",
    ),
    "job": ("script",),
}  # fmt: skip


def identity_values(settings: Settings, global_batch: int) -> dict[str, object]:
    """The dotted keys that a checkpoint's meaning depends on, with their values.

    global_batch: resolved, because "auto" means something else with another number of ranks.
    """
    values: dict[str, object] = {}
    for section, names in _IDENTITY.items():
        for name, value in getattr(settings, section).model_dump(mode="json").items():
            if names is None or name in names:
                values[f"{section}.{name}"] = value
    return values | {"train.global_batch": global_batch}


def digest(value: object) -> str:
    """First 16 hex digits of the sha256 of canonical JSON."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(canonical).hexdigest()[:16]
