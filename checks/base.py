"""What a check is and what it says. Pure: facts and plan in, findings out, nothing touched.

A check never passes without having looked: where facts are missing it says unknown, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel, ConfigDict

from trainctl.host.facts import NodeFacts
from trainctl.job.plan import Plan

HEALTH_ITEM = 15  # node health comes after the 14 numbered items, and is shown without a number


class Status(str, Enum):
    """In the order in which an operator cares."""

    FAIL = "fail"
    UNKNOWN = "unknown"
    WARN = "warn"
    PASS = "pass"
    SKIP = "skip"

    @property
    def rank(self) -> int:
        return list(Status).index(self)


class Finding(BaseModel):
    """One result. summary: observed against expected, one line. fix: a command to copy, or ""."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    item: int
    status: Status
    summary: str
    host: str = ""  # empty: says something about the plan, not about a machine
    evidence: tuple[str, ...] = ()
    fix: str = ""
    doc: str = ""
    blocks: bool = False
    waived: str = ""  # the reason for accepting it; then it does not block


@dataclass(frozen=True, slots=True)
class Code:
    """One thing that a check can say, for ever under the same code, with its page in docs/checks.md.

    blocks: whether it stops a launch; failures always do.
    """

    code: str
    status: Status
    meaning: str
    advice: str = ""
    blocks_unknown: bool = False

    @property
    def item(self) -> int:
        return int(self.code[2:]) // 100

    @property
    def blocks(self) -> bool:
        return self.status is Status.FAIL or self.blocks_unknown

    def __call__(
        self,
        summary: str,
        *,
        host: str = "",
        evidence: Iterable[str] = (),
        fix: str = "",
        harmless: bool = False,
    ) -> Finding:
        """A finding. harmless: it is wrong, but this job does not use it, so only warn."""
        status = Status.WARN if harmless and self.status is Status.FAIL else self.status
        return Finding(
            code=self.code,
            item=self.item,
            status=status,
            summary=summary,
            host=host,
            evidence=tuple(evidence),
            fix=fix,
            doc=f"docs/checks.md#{self.code.lower()}",
            blocks=self.blocks and not harmless,
        )


Judge = Callable[[Plan, Sequence[NodeFacts]], list[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One item of the checklist. `title`: what it makes sure of. `judge` is pure."""

    item: int
    name: str
    title: str
    codes: tuple[Code, ...]
    judge: Judge


def each_node(judge: Callable[[Plan, NodeFacts], list[Finding]]) -> Judge:
    """A judge of many nodes from a judge of one. Findings get the host they are about."""

    def judge_all(plan: Plan, nodes: Sequence[NodeFacts]) -> list[Finding]:
        return [
            finding.model_copy(update={"host": node.host}) for node in nodes for finding in judge(plan, node)
        ]

    return judge_all


def plan_only(judge: Callable[[Plan], list[Finding]]) -> Judge:
    """A judge of the plan alone, which needs no facts."""

    def judge_plan(plan: Plan, nodes: Sequence[NodeFacts]) -> list[Finding]:
        return judge(plan)

    return judge_plan
