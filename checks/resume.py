"""Item 13: the checkpoint that the run would go on from is whole and belongs to this job."""

from __future__ import annotations

from checks.base import Check, Code, Finding, Status, each_node
from trainctl.host.facts import NodeFacts, ResumeFacts
from trainctl.job.plan import Plan
from trainctl.job.units import human_bytes

READY = Code("TC1300", Status.PASS, "a fresh start, or a verified checkpoint of this job")
REJECTED = Code(
    "TC1301", Status.WARN, "newer checkpoints do not verify, an older one will be taken",
    "nothing has to be done; the reasons say what happened to the newer ones",
)  # fmt: skip
FOREIGN = Code(
    "TC1302", Status.FAIL, "the checkpoint was made with another model, data or numerics",
    "restore the configuration, give the job another name, or launch with --fresh to start over",
)  # fmt: skip
NONE_VERIFIES = Code(
    "TC1303", Status.WARN, "checkpoints are there and none verifies, the run will start over",
    "look at the reasons before launching if the run had progressed",
)  # fmt: skip
UNREADABLE = Code(
    "TC1304", Status.UNKNOWN, "the checkpoints could not be verified", "raise preflight.deadline_s"
)
OTHER_WORLD = Code(
    "TC1305", Status.WARN, "the checkpoint was written by another number of ranks",
    "weights, optimizer and data position carry over; random numbers inside the model will differ",
)  # fmt: skip


def _judge(plan: Plan, node: NodeFacts) -> list[Finding]:
    facts = node.resume.value
    if facts is None:
        return [UNREADABLE(f"checkpoints not verified: {node.resume.error}")]
    reasons = [f"step {entry.step:,}: {entry.reason}" for entry in facts.rejected]
    if facts.step is None:
        if reasons:
            return [
                NONE_VERIFIES(f"none of {len(reasons)} checkpoints verifies, starts over", evidence=reasons)
            ]
        return [READY(f"fresh start, nothing in {plan.run.checkpoints}")]
    if facts.identity_digest != plan.identity_digest:
        theirs = f"{facts.name} has identity {facts.identity_digest}"
        covers = ["the identity covers model, data, numerics and script"]
        return [FOREIGN(f"{theirs}, this configuration {plan.identity_digest}", evidence=covers)]
    found = []
    if reasons:
        found.append(
            REJECTED(f"{len(reasons)} newer rejected, step {facts.step:,} will be taken", evidence=reasons)
        )
    if facts.world != plan.layout.world:
        found.append(
            OTHER_WORLD(
                f"step {facts.step:,} was written by {facts.world} ranks, {plan.layout.world} will load it"
            )
        )
    return found or [READY(_summary(plan, facts))]


def _summary(plan: Plan, facts: ResumeFacts) -> str:
    step = facts.step or 0
    text = f"step {step:,} verified, {human_bytes(facts.size_bytes)} from {facts.world} ranks"
    planned = plan.settings.train.steps
    return text if step < planned else f"{text}; all {planned:,} planned steps are done"


CHECK = Check(
    item=13,
    name="resume",
    title="the checkpoint to go on from is whole and belongs to this job",
    codes=(READY, REJECTED, FOREIGN, NONE_VERIFIES, UNREADABLE, OTHER_WORLD),
    judge=each_node(_judge),
)
