"""A plan and a machine on which every item passes; tests change one thing and look for one code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from checks.base import Finding
from checks.registry import CHECKS
from trainctl.host.facts import NodeFacts
from trainctl.job.layout import resolve_layout
from trainctl.job.plan import Plan, SaveInterval
from trainctl.job.settings import Settings

GIB = 1 << 30
IDENTITY = "0123456789abcdef"

MakePlan = Callable[..., Plan]
MakeFacts = Callable[..., NodeFacts]
Judged = Callable[..., list[Finding]]


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` as "section.key" or "section" -> value, over `base`."""
    merged = {name: dict(value) if isinstance(value, dict) else value for name, value in base.items()}
    for dotted, value in changes.items():
        section, _, key = dotted.partition(".")
        if key:
            merged.setdefault(section, {})[key] = value
        else:
            merged[section] = value
    return merged


@pytest.fixture
def make_plan() -> MakePlan:
    """make_plan({"train.micro_batch": 4}, device="cuda", save={"steps": 7})."""

    def make(
        changes: dict[str, Any] | None = None,
        *,
        device: str = "cpu",
        save: dict[str, Any] | None = None,
    ) -> Plan:
        base: dict[str, Any] = {
            "job": {"name": "gpt"},
            "cluster": {"procs_per_node": 2},
            "data": {"path": "/data"},
        }
        settings = Settings.model_validate(_merge(base, changes or {}))
        procs = settings.cluster.procs_per_node
        assert isinstance(procs, int)
        interval: dict[str, Any] = {
            "steps": 77, "basis": "young", "mtbf_s": 86_400.0, "mtbf_basis": "9 interruptions in 216 h",
            "mtbf_low_s": 45_500.0, "mtbf_high_s": 189_000.0, "failures": 9, "cost_s": 20.0,
            "cost_basis": "mean of 12 recorded saves", "step_s": 2.0, "step_basis": "median of attempt 4",
            "best_steps": 77, "overhead": 0.02, "best_overhead": 0.02,
        }  # fmt: skip
        return Plan(
            settings=settings,
            sources={},
            config_path="trainctl.toml",
            base_dir="/srv",
            run_dir="/srv/runs/gpt",
            ledger_dir="/srv/runs/ledger",
            identity_digest=IDENTITY,
            config_digest="f" * 16,
            layout=resolve_layout(settings.parallel, settings.cluster.nodes, procs),
            device=device,
            threads=1,
            grace_s=10.0,
            save=SaveInterval(**{**interval, **(save or {})}),
        )

    return make


def _gpu(index: int, **changes: Any) -> dict[str, Any]:
    gpu = {"index": index, "uuid": f"GPU-000{index}", "total_bytes": 80 * GIB, "free_bytes": 79 * GIB}
    return gpu | changes


def _place(role: str, **changes: Any) -> dict[str, Any]:
    place = {
        "role": role, "path": f"/srv/{role}", "exists": True, "probed": "/srv", "free_bytes": 900 * GIB,
        "free_inodes": 10**7, "filesystem": "ext4", "write_s": 0.01,
    }  # fmt: skip
    return place | changes


def _healthy() -> dict[str, Any]:
    """Every source of a node with two idle H100s, as JSON values."""
    return {
        "gpus": {"devices": [_gpu(0), _gpu(1)]},
        "memory": {"total_bytes": 64 * GIB, "available_bytes": 60 * GIB},
        "shm": {"path": "/dev/shm", "total_bytes": 32 * GIB, "free_bytes": 32 * GIB},
        "leftovers": {},
        "nics": {
            "interfaces": [
                {"name": "eth0", "running": True, "addresses": ["10.0.0.1"]},
                {"name": "eth1", "running": True, "addresses": []},
                {"name": "lo", "running": True, "addresses": ["127.0.0.1"]},
            ]
        },
        "environment": {},
        "storage": {"places": [_place("run"), _place("ledger"), _place("dumps")]},
        "limits": {"open_files": 65_536, "locked_memory_bytes": None},
        "software": {
            "python": "3.11.9",
            "torch": "2.13.0",
            "roots": dict.fromkeys(("trainctl", "checks", "payload"), "/site"),
        },
        "trainer": {"path": "/site/payload/train.py", "reports": True, "proof": "RuntimeError with 3 lines"},
        "resume": {},
    }


@pytest.fixture
def make_facts() -> MakeFacts:
    """make_facts({"gpus.absent": "why"}, environ={"NCCL_DEBUG": "INFO"}, gpu0={"free_bytes": 0}).

    A source that is a plain string was not read, for that reason. run and dumps change a place.
    """

    def make(
        changes: dict[str, Any] | None = None,
        *,
        host: str = "node01",
        environ: dict[str, str] | None = None,
        source: str = "environment",
        gpu0: dict[str, Any] | None = None,
        places: dict[str, dict[str, Any]] | None = None,
        warmup: dict[str, Any] | None = None,
    ) -> NodeFacts:
        sources = _merge(_healthy(), changes or {})
        if environ:
            sources["environment"] = {
                "variables": [{"name": n, "value": v, "source": source} for n, v in environ.items()]
            }
        if gpu0:
            sources["gpus"]["devices"] = [_gpu(0, **gpu0), _gpu(1)]
        if places:
            roles = ("run", "ledger", "dumps")
            sources["storage"] = {"places": [_place(role, **places.get(role, {})) for role in roles]}
        readings = {
            name: {"error": value} if isinstance(value, str) else {"value": value, "error": ""}
            for name, value in sources.items()
        }
        return NodeFacts.model_validate({"host": host, "time": 0.0, "warmup": warmup, **readings})

    return make


@pytest.fixture
def judged() -> Judged:
    """judged(item, plan, facts...): the findings of one item."""

    def run(item: int, plan: Plan, *nodes: NodeFacts) -> list[Finding]:
        check = next(check for check in CHECKS if check.item == item)
        found: Sequence[Finding] = check.judge(plan, nodes)
        assert {finding.code for finding in found} <= {code.code for code in check.codes}
        return list(found)

    return run
