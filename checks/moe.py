"""Item 14: a model with experts records their load."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, plan_only
from trainctl.job.plan import Plan

NO_EXPERTS = Code("TC1400", Status.SKIP, "the model has no experts")
NOT_KNOWN = Code(
    "TC1401", Status.UNKNOWN, "whether the script records the load of its experts is not known",
    "record load, drop rate and router entropy as fields of Reporter.step",
)  # fmt: skip
NOT_IN_TRAINER = Code(
    "TC1402",
    Status.FAIL,
    "the bundled trainer has no experts",
    "set model.experts = 0, or launch another trainer",
)


def _judge(plan: Plan) -> list[Finding]:
    experts = plan.settings.model.experts
    if not experts:
        described = "no experts in this model" if plan.bundled else "model.experts is 0"
        return [NO_EXPERTS(described)]
    if plan.bundled:
        return [NOT_IN_TRAINER(f"model.experts is {experts}, the bundled trainer has dense blocks only")]
    return [NOT_KNOWN(f"{experts} experts; what the script records of them is not known")]


CHECK = Check(
    item=14,
    name="moe",
    title="load, drop rate and router entropy of experts are recorded",
    codes=(NO_EXPERTS, NOT_KNOWN, NOT_IN_TRAINER),
    judge=plan_only(_judge),
)
