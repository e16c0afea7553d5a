"""Node health: the machine itself, apart from the 14 items about the job."""

from __future__ import annotations

import re

from checks.base import HEALTH_ITEM, Check, Code, Finding, Status, each_node
from checks.need import used_gpus
from trainctl.host.facts import NodeFacts
from trainctl.job.plan import Plan
from trainctl.job.units import human_bytes

_OLDEST_TORCH = (2, 8)
_SHM_PER_RANK_BYTES = 64 << 20  # Docker's default for a whole container; NCCL and DataLoader need more
_OPEN_FILES = 1024  # per rank: rank files, sockets to peers, workers, memory-mapped data

HEALTHY = Code("TC1500", Status.PASS, "the machine can carry the job")
TOO_FEW_GPUS = Code(
    "TC1501", Status.FAIL, "there are fewer GPUs than ranks", "lower cluster.procs_per_node, or find the GPU"
)
GPU_LOST = Code(
    "TC1502",
    Status.FAIL,
    "a GPU does not answer",
    "reset it, or take the node out: nvidia-smi -q -i N shows its state",
)
GPUS_UNKNOWN = Code("TC1503", Status.UNKNOWN, "GPUs could not be counted", "check the driver (nvidia-smi)")
SHM_SMALL = Code(
    "TC1504", Status.WARN, "shared memory is small", "start the container with --shm-size=8g or --ipc=host"
)
OPEN_FILES = Code("TC1505", Status.WARN, "few files may be open at once", "ulimit -n 65536")
LOCKED_MEMORY = Code(
    "TC1506", Status.WARN, "little memory may be locked, and InfiniBand or RoCE has to lock its buffers",
    "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service that starts jobs",
)  # fmt: skip
PORT_BUSY = Code(
    "TC1507",
    Status.FAIL,
    "the rendezvous port is taken",
    "set cluster.rendezvous_port = 0 to take a free one",
)
SHADOWED = Code(
    "TC1508", Status.FAIL, "trainctl, checks and payload do not come from one place",
    "another package of that name is found first: check PYTHONPATH and the working directory",
)  # fmt: skip
TORCH = Code("TC1509", Status.FAIL, "torch is missing or too old", "pip install 'torch>=2.8'")
NOT_READ = Code("TC1510", Status.UNKNOWN, "something about the machine could not be read", "see the reason")
WAIVER = Code(
    "TC1511", Status.WARN, "a waiver names a code that does not exist", "trainctl preflight --list shows all"
)


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    found = [
        *(_judge_gpus(plan, node) if plan.device == "cuda" else ()),
        *_judge_shm(plan, node),
        *_judge_limits(plan, node),
        *_judge_software(plan, node),
    ]
    if found:
        return found
    shm, software = node.shm.value, node.software.value
    parts = [f"{len(used_gpus(plan, node))} GPUs answer"] if plan.device == "cuda" else []
    parts.append(f"torch {software.torch}" if software else "")
    parts.append(f"{human_bytes(shm.free_bytes)} of shared memory free" if shm else "")
    limits = node.limits.value
    parts.append(f"{limits.open_files:,} open files" if limits and limits.open_files else "")
    return [HEALTHY(", ".join(part for part in parts if part))]


def _judge_gpus(plan: Plan, node: NodeFacts) -> list[Finding]:
    facts = node.gpus.value
    if facts is None or facts.absent:
        return [GPUS_UNKNOWN(f"GPUs not counted: {node.gpus.error if facts is None else facts.absent}")]
    found = [
        GPU_LOST(f"GPU {gpu.index}: {'; '.join(gpu.unreadable)}")
        for gpu in facts.devices
        if gpu.total_bytes is None
    ]
    ranks, visible = plan.layout.procs_per_node, len(used_gpus(plan, node))
    if visible < ranks:
        found.append(
            TOO_FEW_GPUS(f"{visible} usable of {len(facts.devices)} GPUs, {ranks} ranks need one each")
        )
    return found


def _judge_shm(plan: Plan, node: NodeFacts) -> list[Finding]:
    shm, ranks = node.shm.value, plan.layout.procs_per_node
    if shm is None:
        return [NOT_READ(f"shared memory not read: {node.shm.error}")]
    need = _SHM_PER_RANK_BYTES * ranks
    if ranks == 1 or shm.free_bytes >= need:  # one rank shares with nobody
        return []
    free = f"{human_bytes(shm.free_bytes)} free in {shm.path}"
    return [SHM_SMALL(f"{free}, {human_bytes(need)} expected for {ranks} ranks")]


def _judge_limits(plan: Plan, node: NodeFacts) -> list[Finding]:
    limits, ranks = node.limits.value, plan.layout.procs_per_node
    if limits is None:
        return [NOT_READ(f"limits not read: {node.limits.error}")]
    found = []
    if limits.port_error:
        found.append(PORT_BUSY(f"port {limits.port}: {limits.port_error.lower()}"))
    if limits.open_files is not None and limits.open_files < _OPEN_FILES:
        found.append(OPEN_FILES(f"{limits.open_files:,} open files allowed, {_OPEN_FILES:,} expected"))
    fabric = node.nics.value and any(port.state == "ACTIVE" for port in node.nics.value.ports)
    if fabric and limits.locked_memory_bytes is not None and plan.device == "cuda":
        found.append(
            LOCKED_MEMORY(f"{human_bytes(limits.locked_memory_bytes)} may be locked by {ranks} ranks")
        )
    return found


def _judge_software(plan: Plan, node: NodeFacts) -> list[Finding]:
    software = node.software.value
    if software is None:
        return [NOT_READ(f"software not read: {node.software.error}")]
    found = []
    version = tuple(int(part) for part in re.findall(r"\d+", software.torch)[:2])
    if version < _OLDEST_TORCH:
        found.append(TORCH(f"torch {software.torch or 'is not installed'}, 2.8 or newer expected"))
    roots = {root for name, root in software.roots.items() if plan.bundled or name != "payload"}
    if len(roots) > 1 or "" in roots:
        lines = [f"{name} from {root or 'nowhere'}" for name, root in software.roots.items()]
        found.append(SHADOWED("trainctl, checks and payload come from different places", evidence=lines))
    return found


CHECK = Check(
    item=HEALTH_ITEM,
    name="health",
    title="GPUs, shared memory, limits, ports and packages of the machine are in order",
    codes=(
        HEALTHY, TOO_FEW_GPUS, GPU_LOST, GPUS_UNKNOWN, SHM_SMALL, OPEN_FILES, LOCKED_MEMORY, PORT_BUSY,
        SHADOWED, TORCH, NOT_READ, WAIVER,
    ),
    judge=each_node(_judge),
)  # fmt: skip
