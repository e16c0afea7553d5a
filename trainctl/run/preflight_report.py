"""The result of preflight, and its renderings as lines of text and as JUnit. Pure.

The exit code depends on the report alone, so that it is the same in every format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from pydantic import BaseModel, ConfigDict

from checks.base import HEALTH_ITEM, Finding, Status
from checks.registry import NAMES
from trainctl.exitcodes import ExitCode
from trainctl.host.facts import NodeFacts
from trainctl.job.units import human_seconds

_COUNTED = (Status.PASS, Status.WARN, Status.UNKNOWN, Status.FAIL, Status.SKIP)
STATUS_COLUMN = 21  # where the status word begins in a line that has one
_SHOWN_HOSTS = 4
DETAIL_COLUMN = STATUS_COLUMN + 8  # where what it says begins
_DETAIL = " " * DETAIL_COLUMN


class Report(BaseModel):
    """Findings in the order of the items, and what they were judged from.

    title: what was judged, in one line. config: how the operator names the configuration file.
    durations: "item NAME" or "facts SOURCE" -> seconds.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int = 1
    title: str
    config: str
    findings: tuple[Finding, ...]
    seconds: float = 0.0
    durations: dict[str, float] = {}
    facts: tuple[NodeFacts, ...] = ()

    @property
    def blocking(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.blocks and not finding.waived)

    @property
    def ok(self) -> bool:
        """Whether a launch may start."""
        return not self.blocking

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.DONE if self.ok else ExitCode.PREFLIGHT

    def items(self) -> dict[int, list[Finding]]:
        """Item -> its findings, the worst first."""
        grouped: dict[int, list[Finding]] = {}
        for finding in self.findings:
            grouped.setdefault(finding.item, []).append(finding)
        return {item: sorted(grouped[item], key=_order) for item in sorted(grouped)}

    def to_json(self) -> dict[str, Any]:
        """Everything, with the verdict spelled out for readers that are not Python."""
        verdict = {"ok": self.ok, "exit_code": int(self.exit_code)}
        return verdict | self.model_dump(mode="json")


def _order(finding: Finding) -> tuple[bool, int]:
    return bool(finding.waived), finding.status.rank


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text. `status` is written at STATUS_COLUMN in it, so that a terminal can colour it."""

    text: str
    status: Status | None = None


def full_text(report: Report, *, verbose: bool = False, going_on: bool = False) -> Iterator[Line]:
    """One line an item, details only for what is not fine; verdict and next step last.

    going_on: the launch follows by itself, so a ready machine needs no next step.
    """
    yield Line(report.title)
    yield Line("")
    for findings in report.items().values():
        yield from _item(findings, report, verbose)
    yield Line("")
    if verbose:
        slowest = sorted(report.durations.items(), key=lambda pair: -pair[1])[:5]
        yield Line("slowest: " + ", ".join(f"{name} {human_seconds(seconds)}" for name, seconds in slowest))
    yield Line(f"{verdict(report)} · {human_seconds(report.seconds)} · {_ready(report)}")
    if not (going_on and report.ok):
        yield Line(f"next: {next_step(report)}")


def short_text(report: Report) -> Iterator[Line]:
    """Items that are not fine, and the verdict."""
    yield from problems(report)
    yield Line(f"{verdict(report)} · {_ready(report)}")


def problems(report: Report) -> Iterator[Line]:
    """Lines of the items that are neither pass nor skip."""
    for findings in report.items().values():
        if any(finding.status not in (Status.PASS, Status.SKIP) for finding in findings):
            yield from _item(findings, report, verbose=False)


def _item(findings: Sequence[Finding], report: Report, verbose: bool) -> Iterator[Line]:
    label = _label(findings[0].item)
    trouble = [finding for finding in findings if finding.status not in (Status.PASS, Status.SKIP)]
    for finding, hosts in _fold(findings if verbose or not trouble else trouble):
        fine = finding.status in (Status.PASS, Status.SKIP)
        code = "" if fine and not verbose else f" · {finding.code}"
        where = _where(hosts, len(report.facts))
        yield Line(f"{label}{finding.status.value:<7} {where}{finding.summary}{code}", finding.status)
        label = " " * STATUS_COLUMN
        if not fine or verbose:
            yield from (Line(f"{_DETAIL}{line}") for line in finding.evidence)
        if finding.waived:
            yield Line(f"{_DETAIL}waived: {finding.waived}")
        elif finding.fix and not fine:
            yield Line(f"{_DETAIL}do: {finding.fix}")


def _fold(findings: Sequence[Finding]) -> Iterator[tuple[Finding, list[str]]]:
    """Findings that differ by host only, once, with all their hosts."""
    hosts: dict[Finding, list[str]] = {}
    for finding in findings:
        hosts.setdefault(finding.model_copy(update={"host": ""}), []).append(finding.host)
    yield from hosts.items()


def _where(hosts: Sequence[str], nodes: int) -> str:
    """ "node02 ", or nothing where it is said of every node or of none."""
    named = [host for host in hosts if host]
    if not named or len(named) == nodes:
        return ""
    more = f" and {len(named) - _SHOWN_HOSTS} more" if len(named) > _SHOWN_HOSTS else ""
    return f"{', '.join(named[:_SHOWN_HOSTS])}{more} "


def _label(item: int) -> str:
    number = "" if item == HEALTH_ITEM else str(item)
    return f" {number:>2} {NAMES[item]:<16} "


def verdict(report: Report) -> str:
    """ "2 of 14 items fail", or the counts of every status."""
    worst = {item: _worst(findings) for item, findings in report.items().items()}
    numbered = [status for item, status in worst.items() if item != HEALTH_ITEM]
    health = worst.get(HEALTH_ITEM, Status.PASS)
    blocked = {finding.item for finding in report.blocking}
    if blocked:
        hosts = {finding.host for finding in report.blocking if finding.host}
        where = f" on {len(hosts)} of {len(report.facts)} nodes" if len(report.facts) > 1 and hosts else ""
        failing = len(blocked - {HEALTH_ITEM})
        text = f"{failing} of {len(numbered)} items block{'s' if failing == 1 else ''} a launch{where}"
    else:
        counts = Counter(numbered)
        kinds = [f"{counts[status]} {status.value}" for status in _COUNTED if counts[status]]
        text = f"{len(numbered)} items, {', '.join(kinds)}" if numbered else "no numbered item judged"
    return text if health is Status.PASS else f"{text}, health {health.value}"


def _worst(findings: Sequence[Finding]) -> Status:
    """Of an item: a waived finding counts as a warning."""
    statuses = (Status.WARN if finding.waived else finding.status for finding in findings)
    return min(statuses, key=lambda status: status.rank)


def _ready(report: Report) -> str:
    return "ready" if report.ok else "not ready"


def next_step(report: Report) -> str:
    """The most useful single action."""
    named = "" if report.config == "trainctl.toml" else f" {report.config}"
    if report.ok:
        return f"trainctl launch{named}"
    selected = ",".join(dict.fromkeys(_selector(finding) for finding in report.blocking))
    again = f"trainctl preflight{named} --only {selected}"
    fix = next((finding.fix for finding in report.blocking if finding.fix), "")
    if fix:
        return f"{fix}, then {again}"
    return f"trainctl preflight --explain {report.blocking[0].code} says what to do, then {again}"


def _selector(finding: Finding) -> str:
    return NAMES[finding.item] if finding.item == HEALTH_ITEM else str(finding.item)


def junit(report: Report) -> str:
    """One test case an item: failure when it blocks, skipped when it was not judged."""
    items = report.items()
    suite = ElementTree.Element(
        "testsuite",
        name="trainctl preflight",
        tests=str(len(items)),
        failures=str(len({finding.item for finding in report.blocking})),
        skipped=str(sum(_not_judged(findings) for findings in items.values())),
        time=f"{report.seconds:.3f}",
    )
    for item, findings in items.items():
        case = ElementTree.SubElement(suite, "testcase", classname="preflight", name=_label(item).strip())
        blocking = [finding for finding in findings if finding.blocks and not finding.waived]
        if blocking:
            failure = ElementTree.SubElement(case, "failure", message=_sentence(blocking[0]))
            failure.text = "\n".join(_paragraph(finding) for finding in blocking)
        elif _not_judged(findings):
            ElementTree.SubElement(case, "skipped", message=_sentence(findings[0]))
        rest = [finding for finding in findings if finding not in blocking]
        if rest:
            ElementTree.SubElement(case, "system-out").text = "\n".join(_paragraph(item) for item in rest)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _not_judged(findings: Sequence[Finding]) -> bool:
    return all(finding.status in (Status.SKIP, Status.UNKNOWN) and not finding.blocks for finding in findings)


def _sentence(finding: Finding) -> str:
    return f"{finding.code} {finding.status.value}: {finding.summary}"


def _paragraph(finding: Finding) -> str:
    lines = [_sentence(finding), *(f"  {line}" for line in finding.evidence)]
    lines += [f"  do: {finding.fix}"] if finding.fix else []
    lines += [f"  waived: {finding.waived}"] if finding.waived else []
    return "\n".join(lines)
