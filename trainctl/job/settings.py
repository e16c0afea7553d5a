"""The settings of a job: every key of the TOML file, its type, bounds, default and meaning.

Pure values. Reading files and environment is `config`'s work. Field descriptions are shown by
`trainctl init` and `trainctl plan`, so they are written for operators.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
# What execve takes. A name or value beyond it would end the launch, not the loading.
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
VariableValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class Section(BaseModel):
    """One table of the file. Unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Job(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    """names the run directory"""
    script: str | None = None
    """another trainer instead of the bundled one: a .py file, or any executable"""
    args: tuple[str, ...] = ()
    """arguments of the script; {save_steps}, {run_dir} and {attempt} are filled in"""
    runs_dir: str = "runs"
    """where run directories are made; relative to the configuration file"""


class Cluster(Section):
    nodes: PositiveInt = 1
    """number of hosts; this version launches on one"""
    procs_per_node: PositiveInt | Auto = "auto"
    """ranks on each host; auto is one per GPU, or one where there is none"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """what ranks compute on; auto is cuda where a GPU can be used"""
    rendezvous_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """TCP port of the rendezvous; 0 takes a free one for each attempt"""


class Parallel(Section):
    tp: PositiveInt = 1
    """tensor parallel size"""
    pp: PositiveInt = 1
    """pipeline parallel size"""
    cp: PositiveInt = 1
    """context parallel size"""
    ep: PositiveInt = 1
    """expert parallel size"""
    dp: PositiveInt | Auto = "auto"
    """data parallel size; auto is what is left of the world"""


class Model(Section):
    layers: PositiveInt = 4
    """transformer blocks"""
    hidden: PositiveInt = 256
    """width of the residual stream"""
    heads: PositiveInt = 4
    """query heads"""
    kv_heads: PositiveInt | Auto = "auto"
    """key and value heads (grouped-query attention); auto is as many as query heads"""
    ffn_hidden: PositiveInt | Auto = "auto"
    """inner width of the SwiGLU block; auto is 8/3 of hidden, rounded up to a multiple of 32"""
    vocab: PositiveInt | Auto = "auto"
    """vocabulary size; auto is the tokenizer's, 256 for bytes"""
    seq_len: PositiveInt = 256
    """tokens in one training sequence"""
    tied_head: bool = True
    """share the output head's weight with the embedding"""
    rope_theta: Positive = 10_000.0
    """base of the rotary position frequencies"""
    norm_eps: Positive = 1e-5
    """epsilon of RMSNorm"""
    experts: Natural = 0
    """experts in each MoE block; 0 is a dense model, the only kind the bundled trainer has"""


class Data(Section):
    path: str | None = None
    """a text file, a folder of them, a nanoGPT .bin file, or @stdlib for Python's own sources"""
    include: tuple[str, ...] = ("**/*.txt", "**/*.md", "**/*.py")
    """which files of a folder are read, as glob patterns"""
    tokenizer: str | None = None
    """a tokenizer.json; without it every byte is a token"""
    cache_dir: str = "runs/.data"
    """where tokens are kept once built; relative to the configuration file"""
    eval_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    """share of the tokens, at the end, that is held out for evaluation"""


class Train(Section):
    steps: PositiveInt = 1000
    """optimizer steps in the whole run"""
    micro_batch: PositiveInt = 8
    """sequences in one forward pass of one rank"""
    global_batch: PositiveInt | Auto = "auto"
    """sequences in one optimizer step over all ranks; auto is micro_batch times dp"""
    lr: Positive = 1e-3
    """peak learning rate"""
    min_lr: NonNegative | Auto = "auto"
    """learning rate at the last step (cosine); auto is a tenth of lr"""
    warmup_steps: Natural | Auto = "auto"
    """steps of linear warm-up; auto is a tenth of steps, 50 at most"""
    weight_decay: NonNegative = 0.1
    """AdamW decay of matrices; norms and biases are not decayed"""
    beta1: Fraction = 0.9
    """AdamW decay rate of the first moment"""
    beta2: Fraction = 0.95
    """AdamW decay rate of the second moment"""
    adam_eps: Positive = 1e-8
    """AdamW epsilon"""
    grad_clip: NonNegative = 1.0
    """largest global gradient norm; 0 does not clip"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto is bf16 autocast where the GPU has it, else fp32"""
    seed: Natural = 1234
    """seed of initial weights and data order"""
    eval_interval: Natural = 0
    """steps between evaluations; 0 evaluates at the end only"""
    eval_batches: PositiveInt = 16
    """micro-batches of one evaluation, per rank"""
    log_interval: PositiveInt = 10
    """steps between lines in the log of rank 0"""
    threads: PositiveInt | Auto = "auto"
    """CPU threads of a rank; auto shares the cores among the ranks of a host"""
    collective_timeout_s: Positive = 600.0
    """longest wait in one collective before a rank gives up"""

    @property
    def final_lr(self) -> float:
        """`min_lr` with "auto" resolved."""
        return self.lr / 10 if self.min_lr == "auto" else self.min_lr

    @property
    def warmup(self) -> int:
        """`warmup_steps` with "auto" resolved."""
        return min(50, self.steps // 10) if self.warmup_steps == "auto" else self.warmup_steps

    @model_validator(mode="after")
    def _schedule(self) -> Train:
        if self.final_lr > self.lr:
            raise ValueError(f"min_lr {self.min_lr} is above lr {self.lr}, the rate would climb to the end")
        return self


class Checkpoint(Section):
    save_steps: PositiveInt | Auto = "auto"
    """steps between checkpoints; auto computes it from the recorded MTBF"""
    formula: Literal["young", "daly", "exact"] = "young"
    """how auto computes it"""
    keep: Annotated[int, Field(ge=2)] = 3
    """newest verified checkpoints to keep"""
    cost_s: Positive | Auto = "auto"
    """seconds that one save blocks training; auto is what was measured"""


class Rerun(Section):
    mode: Literal["validate", "disabled"] = "validate"
    """validate rejects a step with a NaN or Inf before it touches a parameter"""


class Waiver(Section):
    code: Annotated[str, Field(pattern=r"^TC\d{3,4}$")]
    """the finding to accept, such as TC103"""
    reason: Annotated[str, Field(min_length=3)]
    """why it is accepted; printed in every report"""


class Preflight(Section):
    warmup: bool = True
    """run two real steps on the real layout, with a save and a load, before launching"""
    headroom: Fraction = 0.08
    """share of the device memory that must stay free at the peak"""
    deadline_s: Positive = 10.0
    """longest time that one check may take"""
    warmup_deadline_s: Positive = 300.0
    """longest time that the warm-up may take"""
    waive: tuple[Waiver, ...] = ()
    """findings that do not block a launch"""


class Watchdog(Section):
    startup_s: Positive = 900.0
    """longest time from spawning torchrun to the first heartbeat of a step"""
    stall_s: Positive = 480.0
    """longest time without any progress of any rank, once steps are running"""


class Restart(Section):
    max_restarts: Natural = 5
    """restarts of one launch, over all causes"""
    same_failure_limit: PositiveInt = 3
    """attempts that may end in the same failure without a newer checkpoint"""
    backoff_s: NonNegative = 1.0
    """wait before the first restart without progress; doubles each time"""
    max_backoff_s: NonNegative = 60.0
    """longest wait before a restart"""
    grace_s: Positive | Auto = "auto"
    """time between TERM and KILL; auto is three times a step and the slowest save seen, at least 10 s"""

    @model_validator(mode="after")
    def _order(self) -> Restart:
        if self.max_backoff_s < self.backoff_s:
            raise ValueError(f"max_backoff_s {self.max_backoff_s} is below backoff_s {self.backoff_s}")
        return self


class Ledger(Section):
    dir: str | Auto = "auto"
    """where attempts are recorded; auto is `ledger` in runs_dir"""
    prior_mtbf_h: Positive | Auto = "auto"
    """MTBF of the whole job assumed while nothing is recorded; auto is 6,000 h divided by nodes"""


class Settings(Section):
    """Everything a configuration file can say. `env` is injected identically into every rank."""

    job: Job
    cluster: Cluster = Cluster()
    parallel: Parallel = Parallel()
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    checkpoint: Checkpoint = Checkpoint()
    rerun: Rerun = Rerun()
    preflight: Preflight = Preflight()
    watchdog: Watchdog = Watchdog()
    restart: Restart = Restart()
    ledger: Ledger = Ledger()
    env: dict[VariableName, VariableValue] = Field(default_factory=dict)
