"""Item 1: the machine is free. The least free GPU decides; without GPUs, host memory does."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from checks.need import least_free, memory_need, used_gpus
from trainctl.host.facts import Gpu, GpuProcess, NodeFacts, ProcessInfo
from trainctl.job.plan import Plan
from trainctl.job.units import human_bytes, human_seconds

_HELD_BYTES = 512 << 20  # used by others on a GPU whose need is not known: more than an idle driver takes
_OLD_SEGMENT_S = 60.0  # younger segments may belong to a process that is just starting

FREE = Code("TC100", Status.PASS, "the machine is free")
GPU_FULL = Code(
    "TC101", Status.FAIL, "a GPU has less free memory than the job needs",
    "end the process that holds it, or ask its owner; the finding names pid, user and command",
)  # fmt: skip
GPU_HELD = Code(
    "TC102", Status.WARN, "a GPU is in use, and the need of this job is not known",
    "end the process that holds it, or describe the model under [model] so that the need can be computed",
)  # fmt: skip
OWN_LEFTOVER = Code(
    "TC103", Status.FAIL, "a process of this very run is still alive without its supervisor",
    "end it: it would write into the same run directory",
)  # fmt: skip
LEFTOVER = Code(
    "TC104", Status.WARN, "a process of another run is still alive without its supervisor",
    "end it, it holds memory and cores for nothing",
)  # fmt: skip
DATA_WORKERS = Code(
    "TC105",
    Status.WARN,
    "data-loader workers outlived their trainer",
    "end them, they hold memory for nothing",
)
STUCK = Code(
    "TC106", Status.WARN, "a process of this user is stuck in the kernel (state D)",
    "no signal reaches it: check the file system or device that its wait channel names",
)  # fmt: skip
SEGMENTS = Code(
    "TC107", Status.WARN, "dead processes left shared memory behind", "remove the segments, nothing maps them"
)
HOST_FULL = Code(
    "TC108", Status.FAIL, "the host has less free memory than the job needs",
    "end what holds the memory, lower train.micro_batch, or raise the limit of the container",
)  # fmt: skip
MEMORY_UNREADABLE = Code(
    "TC109", Status.UNKNOWN, "free memory could not be read",
    "check the driver (nvidia-smi) on the node; a launch is blocked, as the device may be full",
    blocks_unknown=True,
)  # fmt: skip
PROCESSES_UNREADABLE = Code(
    "TC110", Status.UNKNOWN, "leftovers could not be looked for", "see the reason in the finding"
)


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    memory = _judge_gpus(plan, node) if plan.device == "cuda" else _judge_host(plan, node)
    others = _judge_processes(plan, node) + _judge_segments(node)
    problems = [finding for finding in memory + others if finding.status is not Status.PASS]
    return problems or memory


def _judge_gpus(plan: Plan, node: NodeFacts) -> list[Finding]:
    facts = node.gpus.value
    if facts is None or facts.absent:
        return [
            MEMORY_UNREADABLE(f"GPU memory not read: {node.gpus.error if facts is None else facts.absent}")
        ]
    gpus = used_gpus(plan, node)
    unread = [gpu for gpu in gpus if gpu.free_bytes is None]
    if unread or not gpus:
        words = [f"GPU {gpu.index}: {'; '.join(gpu.unreadable) or 'no memory reported'}" for gpu in unread]
        return [MEMORY_UNREADABLE("; ".join(words) or "no visible GPU")]
    found = []
    for gpu in gpus:
        free, total = gpu.free_bytes or 0, gpu.total_bytes or 0
        need = memory_need(plan, node, total)
        what = f"GPU {gpu.index}: {human_bytes(free)} of {human_bytes(total)} free"
        if need is not None and free < need:
            found.append(
                GPU_FULL(f"{what}, {human_bytes(need)} needed", evidence=_holders(gpu), fix=_end(gpu))
            )
        elif need is None and total - free > _HELD_BYTES and gpu.processes:
            found.append(GPU_HELD(what, evidence=_holders(gpu), fix=_end(gpu)))
    least = min(gpus, key=lambda gpu: gpu.free_bytes or 0)
    return found or [
        FREE(
            f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, the least free has "
            f"{human_bytes(least.free_bytes or 0)} of {human_bytes(least.total_bytes or 0)}"
            + _needed(memory_need(plan, node, least.total_bytes or 0))
        )
    ]


def _judge_host(plan: Plan, node: NodeFacts) -> list[Finding]:
    memory = node.memory.value
    if memory is None:
        return [MEMORY_UNREADABLE(f"host memory not read: {node.memory.error}")]
    ranks = plan.layout.procs_per_node
    free = least_free(plan, node) or 0
    per_rank = memory_need(plan, node, memory.capacity_bytes // ranks)
    need = None if per_rank is None else per_rank * ranks
    what = f"{human_bytes(free)} of {human_bytes(memory.capacity_bytes)} host memory free"
    if need is not None and free < need:
        return [HOST_FULL(f"{what}, {human_bytes(need)} needed by {ranks} ranks")]
    return [FREE(what + _needed(need))]


def _needed(need: int | None) -> str:
    return "" if need is None else f", {human_bytes(need)} needed"


def _judge_processes(plan: Plan, node: NodeFacts) -> list[Finding]:
    facts = node.leftovers.value
    if facts is None:
        return [PROCESSES_UNREADABLE(f"leftovers not looked for: {node.leftovers.error}")]
    found = []
    for code, noun, processes in (
        (OWN_LEFTOVER, "of this run", [p for p in facts.of_runs if p.run_dir == plan.run_dir]),
        (LEFTOVER, "of other runs", [p for p in facts.of_runs if p.run_dir != plan.run_dir]),
        (DATA_WORKERS, "that were data-loader workers", list(facts.data_workers)),
    ):
        if processes:
            pids = " ".join(str(process.pid) for process in processes)
            count = f"{len(processes)} process{'es' if len(processes) > 1 else ''}"
            summary = f"{count} {noun} without a supervisor: pid {pids}"
            found.append(code(summary, evidence=map(_process, processes), fix=f"kill {pids}"))
    for process in facts.stuck:
        found.append(
            STUCK(
                f"pid {process.pid} is stuck in {process.wait_channel or 'the kernel'}",
                evidence=[_process(process)],
            )
        )
    return found


def _judge_segments(node: NodeFacts) -> list[Finding]:
    facts = node.shm.value
    old = [segment for segment in facts.abandoned if segment.age_s >= _OLD_SEGMENT_S] if facts else []
    if facts is None or not old:
        return []
    size = human_bytes(sum(segment.size_bytes for segment in old))
    return [
        SEGMENTS(
            f"{len(old)} abandoned segment{'s' if len(old) > 1 else ''} in {facts.path}, {size}",
            evidence=[f"{segment.name}, {human_bytes(segment.size_bytes)}" for segment in old[:8]],
            fix="rm " + " ".join(f"{facts.path}/{segment.name}" for segment in old[:8]),
        )
    ]


def _holders(gpu: Gpu) -> list[str]:
    if not gpu.processes:
        return ["NVML lists no process: it may run outside of this container, or be another user's"]
    return [_holder(process) for process in gpu.processes]


def _holder(process: GpuProcess) -> str:
    used = "memory not reported" if process.used_bytes is None else human_bytes(process.used_bytes)
    if process.process is None:
        return f"held by pid {process.pid} ({used}), which is not visible in this container"
    return f"held by {_process(process.process)}, {used}"


def _process(info: ProcessInfo) -> str:
    state = f"state {info.state}" + (f" {info.wait_channel}" if info.wait_channel else "")
    return f"pid {info.pid} {info.command} (user {info.user}, {human_seconds(info.age_s)}, {state})"


def _end(gpu: Gpu) -> str:
    """A command only for what this user may end; the rest is a person's decision."""
    infos = [process.process for process in gpu.processes]
    if not infos or any(info is None or not info.ours for info in infos):
        return ""
    return "kill " + " ".join(str(info.pid) for info in infos if info)


CHECK = Check(
    item=1,
    name="drain",
    title="nothing of an earlier run or of another user takes the memory that this job needs",
    codes=(
        FREE, GPU_FULL, GPU_HELD, OWN_LEFTOVER, LEFTOVER, DATA_WORKERS, STUCK, SEGMENTS, HOST_FULL,
        MEMORY_UNREADABLE, PROCESSES_UNREADABLE,
    ),
    judge=each_node(_judge),
)  # fmt: skip
