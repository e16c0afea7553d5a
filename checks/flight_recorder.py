"""Item 8: the last collectives of every rank are recorded, and land on disk when one is stuck."""

from __future__ import annotations

import re

from checks.base import Check, Code, Finding, Status, each_node
from checks.variables import as_integer, switched_on
from trainctl.host.facts import EnvironmentFacts, NodeFacts
from trainctl.job.plan import Plan

_SIZE, _OLD_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
# Ring size when neither name is set: read in torch 2.13. Earlier versions had 0; where it changed is
# not established, so versions before are unknown unless the size is set.
_DEFAULT_SINCE = (2, 13)
_DEFAULT_ENTRIES = 2000

ON = Code("TC800", Status.PASS, "the flight recorder is on")
OFF = Code(
    "TC801", Status.WARN, "the flight recorder is off, a hang will not say which collective it was",
    'set TORCH_FR_BUFFER_SIZE = "2000" under [env]',
)  # fmt: skip
NO_DUMP = Code(
    "TC802", Status.WARN, "the flight recorder would not write its record when a collective is stuck",
    "unset TORCH_NCCL_DUMP_ON_TIMEOUT and TORCH_NCCL_ENABLE_MONITORING, both are on by default",
)  # fmt: skip
NOT_WRITABLE = Code(
    "TC803", Status.FAIL, "the flight recorder's directory cannot be written",
    "point TORCH_FR_DUMP_TEMP_FILE under [env] at a path prefix in a directory that exists on every node",
)  # fmt: skip
DEFAULT_UNKNOWN = Code(
    "TC804", Status.UNKNOWN, "whether this torch records by default is not known",
    'set TORCH_FR_BUFFER_SIZE = "2000" under [env]',
)  # fmt: skip
UNREADABLE = Code(
    "TC805", Status.UNKNOWN, "the flight recorder could not be judged", "see the reason in the finding"
)


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    environment, software = node.environment.value, node.software.value
    if environment is None or software is None:
        reason = node.environment.error if environment is None else node.software.error
        return [UNREADABLE(f"flight recorder not judged: {reason}")]
    asked = environment.get(_SIZE) or environment.get(_OLD_SIZE)
    entries, basis = as_integer(asked), f"{_SIZE}={asked}"
    if asked is None:
        if _version(software.torch) < _DEFAULT_SINCE:
            return [
                DEFAULT_UNKNOWN(f"{_SIZE} is not set, and the default of torch {software.torch} is not known")
            ]
        entries, basis = _DEFAULT_ENTRIES, f"default of torch {software.torch}"
    if entries is None:
        return [UNREADABLE(f"{basis} is not a number, item 2 says what happens")]
    if entries <= 0:
        return [OFF(f"{entries} entries ({basis}), {_DEFAULT_ENTRIES} expected")]
    shown = f"{entries:,} entries ({basis})"
    if plan.device != "cuda":
        return [ON(f"{shown}; gloo records, and writes no dump by itself")]
    if off := _switched_off(environment):
        return [NO_DUMP(f"{shown}, but {off}")]
    return _judge_directory(node, shown)


def _judge_directory(node: NodeFacts, shown: str) -> list[Finding]:
    place = node.storage.value.place("dumps") if node.storage.value else None
    if place is None:
        return [UNREADABLE(f"directory of the dumps not tried: {node.storage.error or 'not collected'}")]
    if place.error:
        return [NOT_WRITABLE(f"{place.path}: {place.error}")]
    environment = node.environment.value
    named = environment and (
        environment.get("TORCH_FR_DUMP_TEMP_FILE") or environment.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    )
    if named and not place.exists:  # torch makes its default directory, and only that
        return [
            NOT_WRITABLE(
                f"{place.path} does not exist, and torch does not make it", fix=f"mkdir -p {place.path}"
            )
        ]
    return [ON(f"{shown}, written to {place.path} when a collective is stuck")]


def _switched_off(environment: EnvironmentFacts) -> str:
    for name in ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ENABLE_MONITORING"):
        value = environment.get(name)
        if value is not None and not switched_on(value):
            return f"{name}={value}"
    return ""


def _version(text: str) -> tuple[int, ...]:
    """ "2.13.0+cpu" -> (2, 13)."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


CHECK = Check(
    item=8,
    name="flight recorder",
    title="a stuck collective can be named afterwards",
    codes=(ON, OFF, NO_DUMP, NOT_WRITABLE, DEFAULT_UNKNOWN, UNREADABLE),
    judge=each_node(_judge),
)
