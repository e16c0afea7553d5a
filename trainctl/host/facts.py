"""What one machine showed: the value that collectors fill and checks judge, as versioned JSON.

Every source is a `Reading`: a value, or the reason why there is none. A check that meets a reading
without a value says unknown, never pass and never fail. Facts hold no verdicts and no secrets.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

FACTS_VERSION = 1


class Fact(BaseModel):
    """Fields that a newer trainctl added are ignored, so that recorded facts stay readable."""

    model_config = ConfigDict(frozen=True, extra="ignore")


T = TypeVar("T", bound=Fact)


class Reading(Fact, Generic[T]):
    """One source. `error` says why `value` is None; `seconds` is how long reading it took."""

    value: T | None = None
    error: str = "not collected"
    seconds: float = 0.0


class ProcessInfo(Fact):
    """One process at the moment of reading. `state` is the letter of ps; `ours`: of the reading user."""

    pid: int
    parent_pid: int
    uid: int
    user: str
    ours: bool
    command: str
    state: str
    age_s: float
    wait_channel: str = ""
    run_id: str = ""
    run_dir: str = ""


class GpuProcess(Fact):
    """A holder of device memory. `process` is None when the pid does not exist in this container."""

    pid: int
    used_bytes: int | None
    kind: str  # "compute" or "graphics"
    process: ProcessInfo | None


class Gpu(Fact):
    """One device. `free_bytes` is None when it could not be read; `unreadable` says what and why."""

    index: int
    uuid: str = ""
    name: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    unreadable: tuple[str, ...] = ()


class GpuFacts(Fact):
    """`absent` is the reason why there are no devices, empty when NVML answered."""

    absent: str = ""
    driver: str = ""
    devices: tuple[Gpu, ...] = ()


class MemoryFacts(Fact):
    """Host memory. The limit is that of the tightest enclosing cgroup, None when there is none."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None
    limit_available_bytes: int | None = None

    @property
    def usable_bytes(self) -> int:
        """What this process could still get."""
        limit = self.limit_available_bytes
        return self.available_bytes if limit is None else min(self.available_bytes, limit)

    @property
    def capacity_bytes(self) -> int:
        """What an idle machine would give this process."""
        return self.total_bytes if self.limit_bytes is None else min(self.total_bytes, self.limit_bytes)


class ShmSegment(Fact):
    name: str
    size_bytes: int
    age_s: float


class ShmFacts(Fact):
    """/dev/shm. `abandoned`: segments of this user that no process of this user maps or holds open."""

    path: str
    total_bytes: int
    free_bytes: int
    abandoned: tuple[ShmSegment, ...] = ()


class LeftoverFacts(Fact):
    """Processes of this user that may disturb a run."""

    of_runs: tuple[ProcessInfo, ...] = ()  # started by a trainctl whose supervisor is gone
    data_workers: tuple[ProcessInfo, ...] = ()  # DataLoader workers without their trainer
    stuck: tuple[ProcessInfo, ...] = ()  # in uninterruptible sleep in two samples
    zombies: tuple[ProcessInfo, ...] = ()


class Interface(Fact):
    """speed_mbps is None where the kernel does not say."""

    name: str
    running: bool
    addresses: tuple[str, ...] = ()
    speed_mbps: int | None = None


class HcaPort(Fact):
    """One port of an InfiniBand or RoCE device. state as the kernel writes it: "ACTIVE", "DOWN"."""

    device: str
    port: int
    state: str
    rate_gbps: float | None
    link_layer: str


class NicFacts(Fact):
    interfaces: tuple[Interface, ...] = ()
    ports: tuple[HcaPort, ...] = ()


class Variable(Fact):
    """One variable as a rank will see it. The value of a secret is never stored."""

    name: str
    value: str
    source: str  # "[env]", "environment", "trainctl", or the path of a configuration file
    redacted: bool = False


class EnvironmentFacts(Fact):
    """`shadowed`: values that a stronger source overrides. `unreadable`: files that could not be read."""

    variables: tuple[Variable, ...] = ()
    shadowed: tuple[Variable, ...] = ()
    unreadable: tuple[str, ...] = ()

    def get(self, name: str) -> str | None:
        """The value that ranks see; None when unset or not stored because it is a secret."""
        for variable in self.variables:
            if variable.name == name and not variable.redacted:
                return variable.value
        return None


class Place(Fact):
    """One directory that a run writes to, tried with a real write and fsync.

    role: "run", "ledger" or "dumps". probed: where the trial was made, the directory itself or its
    nearest existing parent. error: why the trial failed, empty when it went well.
    """

    role: str
    path: str
    exists: bool
    probed: str
    error: str = ""
    write_s: float = 0.0
    free_bytes: int = 0
    free_inodes: int | None = None  # None: the file system does not count them
    filesystem: str = ""
    read_only: bool = False


class StorageFacts(Fact):
    places: tuple[Place, ...] = ()

    def place(self, role: str) -> Place | None:
        return next((place for place in self.places if place.role == role), None)


class LimitFacts(Fact):
    """Limits of this process; None is unlimited. port_error: why the rendezvous port is not free."""

    open_files: int | None
    locked_memory_bytes: int | None
    port: int = 0
    port_error: str = ""


class SoftwareFacts(Fact):
    """`roots`: package name -> directory that it is imported from, empty when it is not found."""

    python: str
    torch: str
    roots: dict[str, str]


class TrainerFacts(Fact):
    """What is known of the entry point without running it.

    problem: why it cannot be started, empty when nothing speaks against it. syntax_error: "file:line:
    message". reports: whether its source mentions Reporter. proof: what the trial exception left behind,
    empty when it was not tried; proof_error: what was missing. vocab: size of the tokenizer, if read.
    """

    path: str
    problem: str = ""
    syntax_error: str = ""
    reports: bool = False
    proof: str = ""
    proof_error: str = ""
    vocab: int | None = None


class RejectedCheckpoint(Fact):
    step: int
    reason: str


class ResumeFacts(Fact):
    """The newest checkpoint that verifies, step None when there is none, and newer ones that do not."""

    step: int | None = None
    name: str = ""
    world: int = 0
    identity_digest: str = ""
    size_bytes: int = 0
    present: int = 0  # checkpoints with all their bytes, whose room a next one can count on
    rejected: tuple[RejectedCheckpoint, ...] = ()


class Warmup(Fact):
    """What the warm-up measured. Times in seconds; peak memory of each rank, in rank order."""

    ok: bool
    error: str = ""
    log: str = ""
    seconds: float = 0.0
    step_s: float = 0.0
    save_s: float = 0.0
    load_s: float = 0.0
    checkpoint_bytes: int = 0
    peak_memory_bytes: tuple[int, ...] = ()
    tokens_per_step: int = 0


class NodeFacts(Fact):
    """Everything one machine showed. `time` is seconds since the epoch."""

    version: int = FACTS_VERSION
    host: str
    time: float
    gpus: Reading[GpuFacts] = Reading[GpuFacts]()
    memory: Reading[MemoryFacts] = Reading[MemoryFacts]()
    shm: Reading[ShmFacts] = Reading[ShmFacts]()
    leftovers: Reading[LeftoverFacts] = Reading[LeftoverFacts]()
    nics: Reading[NicFacts] = Reading[NicFacts]()
    environment: Reading[EnvironmentFacts] = Reading[EnvironmentFacts]()
    storage: Reading[StorageFacts] = Reading[StorageFacts]()
    limits: Reading[LimitFacts] = Reading[LimitFacts]()
    software: Reading[SoftwareFacts] = Reading[SoftwareFacts]()
    trainer: Reading[TrainerFacts] = Reading[TrainerFacts]()
    resume: Reading[ResumeFacts] = Reading[ResumeFacts]()
    warmup: Warmup | None = None
    warmup_skipped: str = "not asked for"

    def with_warmup(self, warmup: Warmup) -> NodeFacts:
        return self.model_copy(update={"warmup": warmup, "warmup_skipped": ""})

    def without_warmup(self, reason: str) -> NodeFacts:
        return self.model_copy(update={"warmup": None, "warmup_skipped": reason})


SOURCES = tuple(name for name, field in NodeFacts.model_fields.items() if isinstance(field.default, Reading))
