"""The frame: order, selection, waivers, verdict, renderings. Golden files show what people read.

Regenerate after a wanted change:
    REGENERATE=1 .venv/bin/python -m pytest tests/checklist/test_report.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from checks import registry
from checks.base import HEALTH_ITEM, Status
from trainctl.errors import TrainctlError
from trainctl.exitcodes import ExitCode
from trainctl.host.facts import Warmup
from trainctl.run import preflight
from trainctl.run.preflight import judge
from trainctl.run.preflight_report import STATUS_COLUMN, Report, full_text, junit, next_step, short_text

GIB = 1 << 30
ROOT = Path(__file__).parents[2]


@pytest.fixture
def troubled(make_plan: Any, make_facts: Any) -> Report:
    """Two nodes, two blocking items, a warning, an unknown and a waiver; seconds as recorded."""
    holder = {
        "pid": 48211, "parent_pid": 1, "uid": 1042, "user": "ann", "ours": False, "state": "D",
        "command": "python train.py", "age_s": 8040.0, "wait_channel": "nfs_wait",
    }  # fmt: skip
    process = {"pid": 48211, "used_bytes": 37 * GIB, "kind": "compute", "process": holder}
    plan = make_plan(
        {
            "cluster.nodes": 2,
            "train.global_batch": 40,
            "watchdog.stall_s": 7200,
            "preflight.waive": [
                {"code": "TC309", "reason": "one network only"},
                {"code": "TC703", "reason": "slow file system, asked for by ann"},
            ],
        },
        device="cuda",
    )
    nodes = [
        make_facts(),
        make_facts(
            {"resume": "no answer in 10 s"}, host="node02", gpu0={"free_bytes": GIB, "processes": [process]}
        ),
    ]
    return judge(plan, nodes).model_copy(update={"seconds": 3.14, "durations": {"facts gpus": 0.012}})


def golden(name: str, content: str) -> None:
    path = Path(__file__).with_name("golden") / name
    if os.environ.get("REGENERATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        pytest.fail(f"wrote {path.name}, look at the difference and run again")
    assert content == path.read_text()


def test_text_as_people_read_it(troubled: Report) -> None:
    lines = list(full_text(troubled))
    golden("report.txt", "\n".join(line.text for line in lines) + "\n")
    for line in lines:
        if line.status is not None:
            assert line.text[STATUS_COLUMN:].startswith(line.status.value)


def test_json_as_scripts_read_it(troubled: Report) -> None:
    content = troubled.to_json()
    facts = content.pop("facts")
    golden("report.json", json.dumps(content, indent=2) + "\n")
    assert [node["host"] for node in facts] == ["node01", "node02"]


def test_junit_as_ci_reads_it(troubled: Report) -> None:
    text = junit(troubled)
    golden("report.xml", text)
    suite = ElementTree.fromstring(text)
    assert suite.get("failures") == "2"
    assert len(suite.findall("testcase")) == HEALTH_ITEM


def test_a_report_survives_json_with_its_facts(troubled: Report) -> None:
    assert Report.model_validate_json(json.dumps(troubled.to_json())) == troubled


def test_items_come_in_order_and_each_once(make_plan: Any, make_facts: Any) -> None:
    report = judge(make_plan(), [make_facts()])
    assert [finding.item for finding in report.findings] == list(range(1, HEALTH_ITEM + 1))
    assert report.ok
    assert report.exit_code is ExitCode.DONE
    assert next_step(report) == "trainctl launch"
    assert [line.text for line in short_text(report)] == ["14 items, 12 pass, 2 skip · ready"]


def test_a_failure_blocks_and_the_next_step_has_its_fix(make_plan: Any, make_facts: Any) -> None:
    report = judge(make_plan(), [make_facts(environ={"TORCH_FR_CPP_STACK": "on"})])
    assert report.exit_code is ExitCode.PREFLIGHT
    assert next_step(report) == "unset TORCH_FR_CPP_STACK, then trainctl preflight --only 2"


def test_without_a_fix_the_next_step_explains(make_plan: Any, make_facts: Any) -> None:
    report = judge(make_plan({"parallel.dp": 3}), [make_facts({"software.torch": ""})])
    assert next_step(report) == (
        "trainctl preflight --explain TC601 says what to do, then trainctl preflight --only 6,health"
    )


@pytest.mark.parametrize(
    ("item", "changes", "device"),
    [(1, {"gpus": "no answer"}, "cuda"), (2, {"environment": "no answer"}, "cpu")],
)
def test_these_unknowns_block(item: int, changes: Any, device: str, make_plan: Any, make_facts: Any) -> None:
    report = judge(make_plan(device=device), [make_facts(changes)])
    assert {finding.item for finding in report.blocking} == {item}


@pytest.mark.parametrize("source", ["nics", "storage", "trainer", "resume", "leftovers", "shm", "software"])
def test_other_unknowns_do_not_block_and_do_not_pass(source: str, make_plan: Any, make_facts: Any) -> None:
    report = judge(make_plan(), [make_facts({source: "no answer in 10 s"})])
    assert report.ok
    unknown = [finding for finding in report.findings if finding.status is Status.UNKNOWN]
    assert unknown
    assert all("no answer in 10 s" in finding.summary for finding in unknown)


def test_a_waived_failure_is_printed_with_its_reason_and_does_not_block(
    make_plan: Any, make_facts: Any
) -> None:
    waive = {"preflight.waive": [{"code": "TC1001", "reason": "mounted at launch"}]}
    facts = make_facts(places={"run": {"error": "Read-only file system"}})
    assert not judge(make_plan(), [facts]).ok
    report = judge(make_plan(waive), [facts])
    assert report.ok
    assert "waived: mounted at launch" in "\n".join(line.text for line in short_text(report))
    assert "1 warn" in list(short_text(report))[-1].text


def test_a_waiver_of_an_unknown_code_is_a_warning(make_plan: Any, make_facts: Any) -> None:
    report = judge(make_plan({"preflight.waive": [{"code": "TC999", "reason": "typo"}]}), [make_facts()])
    assert report.ok
    (finding,) = [finding for finding in report.findings if finding.code == "TC1511"]
    assert "TC999" in finding.summary


@pytest.mark.parametrize(
    ("only", "items"),
    [
        (["1", "13"], [1, 13]),
        (["drain"], [1]),
        (["health"], [15]),
        (["tc603"], [6]),
        (["flight recorder"], [8]),
    ],
)
def test_only_selects_by_item_name_or_code(
    only: list[str], items: list[int], make_plan: Any, make_facts: Any
) -> None:
    report = judge(make_plan(), [make_facts()], only)
    assert [finding.item for finding in report.findings] == items


def test_only_a_code_leaves_out_the_other_findings_of_its_item(make_plan: Any, make_facts: Any) -> None:
    plan = make_plan({"parallel.dp": 3, "train.global_batch": 7})
    assert [f.code for f in judge(plan, [make_facts()], ["TC603"]).findings] == ["TC603"]
    absent = judge(plan, [make_facts()], ["TC604"])
    assert [(f.code, f.status) for f in absent.findings] == [("TC604", Status.PASS)]


def test_only_something_else_is_an_error(make_plan: Any, make_facts: Any) -> None:
    with pytest.raises(TrainctlError, match="'16' is neither") as raised:
        judge(make_plan(), [make_facts()], ["1", "16"])
    assert raised.value.exit_code is ExitCode.USAGE


def test_codes_are_unique_numbered_by_item_and_end_without_a_full_stop() -> None:
    codes = [code for check in registry.CHECKS for code in check.codes]
    assert len({code.code for code in codes}) == len(codes)
    for check in registry.CHECKS:
        assert {code.item for code in check.codes} == {check.item}
    for code in codes:
        assert not code.meaning.endswith(".")
        assert not code.advice.endswith(".")
        assert code.advice or code.status in (Status.PASS, Status.SKIP), code


def test_the_documentation_is_that_of_the_checks() -> None:
    documented = (ROOT / "docs" / "checks.md").read_text()
    assert documented == registry.document(), "run: python -m checks.registry > docs/checks.md"


# --- the warm-up in its place ---------------------------------------------------------------------


@pytest.fixture
def prepared(make_plan: Any, make_facts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """prepare() on given facts: (report, measurements that plans were made from, warm-ups run)."""

    def run(facts: dict[str, Any], changes: Any = None, **options: Any) -> Any:
        monkeypatch.setattr(preflight, "collect", lambda plan, environ, **_: make_facts(facts))
        plans: list[Warmup | None] = []
        warmups: list[Any] = []

        def plan_from(warmup: Warmup | None) -> Any:
            plans.append(warmup)
            return make_plan(changes)

        def warm_up(plan: Any) -> Warmup:
            warmups.append(plan)
            return Warmup(ok=True, step_s=0.5, save_s=1.0)

        _, report = preflight.prepare(plan_from, warm_up, **options)
        (fifth,) = [finding for finding in report.findings if finding.item == 5] or [None]
        return fifth, plans, warmups

    return run


def test_the_warm_up_runs_on_a_ready_machine_and_feeds_the_plan(prepared: Any) -> None:
    fifth, plans, warmups = prepared({})
    assert fifth.code == "TC500"
    assert len(warmups) == 1
    assert [warmup and warmup.step_s for warmup in plans] == [None, 0.5]


def test_the_warm_up_does_not_run_on_a_machine_that_is_not_ready(prepared: Any) -> None:
    fifth, _, warmups = prepared({"memory.available_bytes": GIB})
    assert (fifth.status, fifth.summary) == (Status.SKIP, "not run: 1 drain first")
    assert warmups == []


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        (None, {"quick": True}, "--quick"),
        ({"preflight.warmup": False}, {}, "preflight.warmup is false"),
        ({"job.script": "train.py"}, {}, "the script is not run on trial"),
        (None, {"only": ["1"]}, None),
    ],
)
def test_when_the_warm_up_is_left_out_the_reason_is_said(
    changes: Any, options: Any, reason: str | None, prepared: Any
) -> None:
    fifth, _, warmups = prepared({}, changes, **options)
    assert warmups == []
    assert (fifth and fifth.summary) == reason
