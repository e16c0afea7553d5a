"""Every check, in the order of the report, and every code that they can say."""

from __future__ import annotations

import sys

from checks import (
    divisibility,
    drain,
    environment,
    exceptions,
    flight_recorder,
    health,
    interval,
    logs,
    memory_budget,
    moe,
    nics,
    resume,
    timeouts,
    warmup_step,
    watchdog,
)
from checks.base import HEALTH_ITEM, Check, Code

CHECKS: tuple[Check, ...] = tuple(
    module.CHECK
    for module in (
        drain, environment, nics, memory_budget, warmup_step, divisibility, timeouts, flight_recorder,
        exceptions, logs, watchdog, interval, resume, moe, health,
    )
)  # fmt: skip
CODES: dict[str, Code] = {code.code: code for check in CHECKS for code in check.codes}
NAMES: dict[int, str] = {check.item: check.name for check in CHECKS}


def heading(check: Check) -> str:
    return check.name if check.item == HEALTH_ITEM else f"{check.item} {check.name}"


def document() -> str:
    """docs/checks.md: one section an item, one anchor a code."""
    lines = [
        "# What preflight checks",
        "",
        "One section for each item, one entry for each code. `trainctl preflight --explain CODE` prints one.",
        "`[preflight] waive` accepts a finding by its code, with a reason. A launch is blocked by every",
        "*fail*, and by an *unknown* that says so. Made by `python -m checks.registry > docs/checks.md`.",
    ]
    for check in CHECKS:
        lines += ["", f"## {heading(check)}", "", f"Makes sure that {check.title}."]
        for code in check.codes:
            lines += ["", f"### {code.code}", "", f"*{severity(code)}*: {code.meaning}."]
            if code.advice:
                lines += ["", f"What to do: {code.advice}."]
    return "\n".join(lines) + "\n"


def severity(code: Code) -> str:
    return f"{code.status.value}, blocks a launch" if code.blocks_unknown else code.status.value


if __name__ == "__main__":
    sys.stdout.write(document())
