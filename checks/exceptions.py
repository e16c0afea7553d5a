"""Item 9: the first exception of a rank is on disk before any clean-up can hide it."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from trainctl.host.facts import NodeFacts
from trainctl.job.plan import Plan

RECORDED = Code("TC900", Status.PASS, "the first exception is recorded")
SYNTAX = Code(
    "TC901", Status.WARN, "the script has a syntax error", "correct it: every rank will end at once"
)
NOT_STARTABLE = Code(
    "TC902", Status.FAIL, "the script cannot be started", "correct job.script, or its permissions"
)
SILENT = Code(
    "TC903", Status.UNKNOWN, "nothing shows that the script records its first exception",
    "wrap the training loop in `with trainctl.Reporter() as reporter:`",
)  # fmt: skip
NOT_RECORDED = Code(
    "TC904", Status.FAIL, "a trial exception was not recorded",
    "the reason says what was missing; without records a failure is only an exit code",
)  # fmt: skip
NOT_TRIED = Code(
    "TC905", Status.UNKNOWN, "the trial exception could not be made", "see the reason in the finding"
)


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    trainer = node.trainer.value
    if trainer is None:
        return [NOT_TRIED(f"not tried: {node.trainer.error}")]
    if trainer.problem:
        return [NOT_STARTABLE(trainer.problem)]
    if trainer.syntax_error:
        return [SYNTAX(f"{trainer.syntax_error}: every rank will end at once")]
    if not trainer.reports:
        return [SILENT(f"{trainer.path} does not mention trainctl.Reporter")]
    if not plan.bundled:
        return [RECORDED("the script uses trainctl.Reporter (found in its source, not tried)")]
    if trainer.proof_error:
        return [NOT_RECORDED(trainer.proof_error)]
    return [RECORDED(f"tried: {trainer.proof} was on disk when the process had ended")]


CHECK = Check(
    item=9,
    name="exceptions",
    title="the first exception of a rank survives",
    codes=(RECORDED, SYNTAX, NOT_STARTABLE, SILENT, NOT_RECORDED, NOT_TRIED),
    judge=each_node(_judge),
)
