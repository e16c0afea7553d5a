"""Item 10: per-rank logs and step records can be written for the whole run."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from trainctl.host.facts import NodeFacts, Place
from trainctl.job.plan import Plan
from trainctl.job.units import human_bytes, human_seconds

_RECORD_BYTES = 400  # one line of steps/rank-N.jsonl, with its sample ids
_FILES_PER_RANK = 5  # two logs, heartbeat, records, exit; one report when it fails
_ATTEMPTS = 100  # that have to fit

WRITABLE = Code("TC1000", Status.PASS, "logs and records can be written")
NOT_WRITABLE = Code(
    "TC1001",
    Status.FAIL,
    "the run directory cannot be written",
    "correct the path (job.runs_dir), its owner or the mount",
)
LEDGER = Code(
    "TC1002", Status.FAIL, "the ledger cannot be written", "correct ledger.dir, its owner or the mount"
)
SPACE = Code(
    "TC1003", Status.FAIL, "step records of the whole run do not fit", "make room, or move job.runs_dir"
)
INODES = Code("TC1004", Status.WARN, "few files can still be made", "remove old runs, or move job.runs_dir")
UNREADABLE = Code(
    "TC1005", Status.UNKNOWN, "the run directory could not be tried", "see the reason in the finding"
)


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    storage = node.storage.value
    run = storage.place("run") if storage else None
    if storage is None or run is None:
        return [UNREADABLE(f"run directory not tried: {node.storage.error or 'not collected'}")]
    found = []
    for code, place in ((NOT_WRITABLE, run), (LEDGER, storage.place("ledger"))):
        if place is not None and place.error:
            where = f"{place.path} on {place.filesystem}" if place.filesystem else place.path
            found.append(code(f"{where}: {place.error}"))
    return found or _judge_room(plan, run)


def _judge_room(plan: Plan, run: Place) -> list[Finding]:
    world = plan.layout.world
    need = plan.settings.train.steps * world * _RECORD_BYTES
    files = world * _FILES_PER_RANK * _ATTEMPTS
    room = f"{human_bytes(run.free_bytes)} free on {run.filesystem or 'its file system'}"
    if run.free_bytes < need:
        return [SPACE(f"{room}, records of {plan.settings.train.steps:,} steps need {human_bytes(need)}")]
    if run.free_inodes is not None and run.free_inodes < files:
        return [INODES(f"{run.free_inodes:,} free inodes, {_ATTEMPTS} attempts make up to {files:,} files")]
    written = f"1 MiB written in {human_seconds(run.write_s)}"
    return [WRITABLE(f"{run.probed}: {written}, {room}, records need {human_bytes(need)}")]


CHECK = Check(
    item=10,
    name="logs",
    title="logs and step records of every rank can be written for the whole run",
    codes=(WRITABLE, NOT_WRITABLE, LEDGER, SPACE, INODES, UNREADABLE),
    judge=each_node(_judge),
)
