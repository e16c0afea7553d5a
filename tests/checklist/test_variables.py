"""Item 2: values as the libraries parse them, names that mislead."""

from __future__ import annotations

from typing import Any

import pytest

from checks.base import Status

# (name, value, code, words of the summary); the sources are named in checks/variables.py
BAD = [
    ("NCCL_IB_DISABLE", "true", "TC201", "integer 0"),
    ("NCCL_IB_DISABLE", "yes", "TC201", "integer 0"),
    ("NCCL_IB_TIMEOUT", "22s", "TC201", "integer 22"),
    ("NCCL_IB_GID_INDEX", "auto", "TC201", "integer 0"),
    ("NCCL_IB_TC", "0x", "TC201", "integer 0"),
    ("NCCL_BUFFSIZE", "4M", "TC201", "integer 4"),
    ("NCCL_NTHREADS", "08", "TC201", "integer 0"),
    ("NCCL_P2P_DISABLE", "on", "TC201", "integer 0"),
    ("NCCL_P2P_LEVEL", "nvl", "TC201", "ignores an unknown word"),
    ("NCCL_P2P_LEVEL", "NVLINK", "TC201", "LOC NVL PIX"),
    ("NCCL_NET_GDR_LEVEL", "6", "TC201", "ignores an unknown word"),
    ("NCCL_DEBUG", "VERBOSE", "TC201", "logs nothing"),
    ("NCCL_DEBUG", "1", "TC201", "logs nothing"),
    ("TORCH_FR_BUFFER_SIZE", "abc", "TC201", "aborts or hangs"),
    ("TORCH_FR_BUFFER_SIZE", "", "TC201", "aborts or hangs"),
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "big", "TC201", "aborts or hangs"),
    ("TORCH_FR_CPP_STACK", "on", "TC201", "aborts or hangs"),
    ("TORCH_FR_CPP_STACK", "2", "TC201", "aborts or hangs"),
    ("TORCH_FR_CPP_STACK", "", "TC201", "aborts or hangs"),
    ("TORCH_NCCL_BLOCKING_WAIT", "enabled", "TC201", "true, false"),
    ("TORCH_NCCL_DUMP_ON_TIMEOUT", "on", "TC201", "true, false"),
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "ten", "TC201", "an integer"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "true", "TC201", "an integer"),
    ("TORCH_DISTRIBUTED_DEBUG", "ON", "TC201", "OFF INFO DETAIL"),
    ("OMP_NUM_THREADS", "four", "TC201", "integer"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "one", "TC201", "integer"),
    ("CUDA_DEVICE_ORDER", "pci_bus_id", "TC201", "PCI_BUS_ID"),
    ("NCCL_COMM_ID", "10.0.0.1:5000", "TC202", "communicators do not form"),
    ("NCCL_TIMEOUT", "1800", "TC203", "neither NCCL nor torch"),
    ("GLOO_TIMEOUT", "60", "TC203", "gloo does not read it"),
    ("CUDA_LAUNCH_BLOCKING", "1", "TC204", "every kernel launch waits"),
    ("NCCL_P2P_DISABLE", "1", "TC204", "host memory"),
    ("NCCL_SHM_DISABLE", "1", "TC204", "network"),
    ("NCCL_IB_DISABLE", "1", "TC204", "TCP sockets"),
    ("NCCL_ALGO", "Ring", "TC204", "algorithm"),
    ("NCCL_PROTO", "Simple", "TC204", "protocol"),
    ("CUDA_INJECTION64_PATH", "/opt/nsys.so", "TC204", "profiler"),
    ("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1", "TC204", "core"),
    ("COMPUTE_PROFILE", "1", "TC204", "profiler"),
    ("CUDA_VISIBLE_DEVICES", "0", "TC208", "1 of 2 GPUs"),
    ("CUDA_VISIBLE_DEVICES", "0,7", "TC208", "1 of 2 GPUs"),
    ("CUDA_VISIBLE_DEVICES", "", "TC208", "0 of 2 GPUs"),
    ("CUDA_VISIBLE_DEVICES", "GPU-9999,GPU-0001", "TC208", "0 of 2 GPUs"),
]
GOOD = [
    ("NCCL_IB_RETRY_CNT", ""),
    ("NCCL_IB_DISABLE", "0"), ("NCCL_IB_TIMEOUT", "22"), ("NCCL_IB_TC", "0x6a"), ("NCCL_IB_SL", "010"),
    ("NCCL_IB_GID_INDEX", "-1"), ("NCCL_BUFFSIZE", " 4194304 "), ("NCCL_P2P_LEVEL", "NVL"),
    ("NCCL_P2P_LEVEL", "5"),
    ("NCCL_NET_GDR_LEVEL", "SYS"), ("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG", "info"), ("NCCL_DEBUG", "Version"),
    ("NCCL_P2P_DISABLE", "0"), ("NCCL_ALGO", ""), ("NCCL_NVLS_ENABLE", "2"), ("TORCH_FR_BUFFER_SIZE", "20x"),
    ("TORCH_FR_BUFFER_SIZE", "2000"), ("TORCH_FR_CPP_STACK", "true"), ("TORCH_FR_CPP_STACK", "Y"),
    ("TORCH_NCCL_BLOCKING_WAIT", "No"), ("TORCH_NCCL_DUMP_ON_TIMEOUT", "T"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"), ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "1200"),
    ("TORCH_DISTRIBUTED_DEBUG", "detail"), ("OMP_NUM_THREADS", "8"), ("OMP_NUM_THREADS", "4,2"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("CUDA_LAUNCH_BLOCKING", "0"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    ("CUDA_VISIBLE_DEVICES", "0,1"), ("CUDA_VISIBLE_DEVICES", "GPU-0001,GPU-0000"),
    ("NCCL_SOMETHING_NEW", "abc"),
    ("UCX_TLS", "rc,cuda"), ("FI_PROVIDER", "efa"), ("HSA_FORCE_FINE_GRAIN_PCIE", "1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "code", "words"), BAD)
def test_bad_values(
    name: str, value: str, code: str, words: str, make_plan: Any, make_facts: Any, judged: Any
) -> None:
    (finding,) = judged(2, make_plan(device="cuda"), make_facts(environ={name: value}))
    assert finding.code == code
    assert words in finding.summary
    assert finding.summary.startswith(name)


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_good_values(name: str, value: str, make_plan: Any, make_facts: Any, judged: Any) -> None:
    (finding,) = judged(2, make_plan(device="cuda"), make_facts(environ={name: value}))
    assert finding.code == "TC200"


def test_what_only_nccl_reads_does_not_stop_a_cpu_job(make_plan: Any, make_facts: Any, judged: Any) -> None:
    (finding,) = judged(2, make_plan(), make_facts(environ={"NCCL_IB_DISABLE": "true"}))
    assert (finding.code, finding.status, finding.blocks) == ("TC201", Status.WARN, False)
    (finding,) = judged(2, make_plan(), make_facts(environ={"TORCH_FR_BUFFER_SIZE": "abc"}))
    assert (finding.code, finding.status, finding.blocks) == ("TC201", Status.FAIL, True)


def test_a_loud_log_is_named_for_many_ranks_only(make_plan: Any, make_facts: Any, judged: Any) -> None:
    loud = make_facts(environ={"NCCL_DEBUG": "INFO"})
    assert judged(2, make_plan({"cluster.nodes": 33}, device="cuda"), loud)[0].code == "TC204"
    assert judged(2, make_plan({"cluster.nodes": 32}, device="cuda"), loud)[0].code == "TC200"


@pytest.mark.parametrize(("old", "new", "conflicts"), [("0", "2000", True), ("2000", "2000", False)])
def test_an_old_name_that_disagrees_with_the_new_one(
    old: str, new: str, conflicts: bool, make_plan: Any, make_facts: Any, judged: Any
) -> None:
    environ = {"TORCH_NCCL_TRACE_BUFFER_SIZE": old, "TORCH_FR_BUFFER_SIZE": new}
    found = judged(2, make_plan(), make_facts(environ=environ))
    assert ("TC205" in [finding.code for finding in found]) is conflicts


def test_an_old_name_beside_what_only_the_launcher_set_is_no_conflict(
    make_plan: Any, make_facts: Any, judged: Any
) -> None:
    variables = [
        {"name": "NCCL_ASYNC_ERROR_HANDLING", "value": "1", "source": "environment"},
        {"name": "TORCH_NCCL_ASYNC_ERROR_HANDLING", "value": "3", "source": "trainctl"},
    ]
    (finding,) = judged(2, make_plan(device="cuda"), make_facts({"environment.variables": variables}))
    assert finding.code == "TC200"


def test_sources_that_disagree_and_sources_that_cannot_be_read(
    make_plan: Any, make_facts: Any, judged: Any
) -> None:
    facts = make_facts(
        {
            "environment.variables": [{"name": "NCCL_IB_TC", "value": "106", "source": "[env]"}],
            "environment.shadowed": [{"name": "NCCL_IB_TC", "value": "41", "source": "/etc/nccl.conf"}],
            "environment.unreadable": ["/etc/nccl.conf: Permission denied"],
        }
    )
    codes = {finding.code: finding for finding in judged(2, make_plan(device="cuda"), facts)}
    assert set(codes) == {"TC206", "TC207"}
    assert codes["TC206"].blocks
    assert codes["TC207"].summary == "NCCL_IB_TC is 41 in /etc/nccl.conf, ranks get 106"
    (unread,) = judged(2, make_plan(), make_facts({"environment": "no answer in 10 s"}))
    assert (unread.code, unread.blocks) == ("TC206", True)


def test_redacted_values_are_not_judged_and_not_shown(make_plan: Any, make_facts: Any, judged: Any) -> None:
    secret = {"name": "NCCL_SECRET_KEY", "value": "", "source": "environment", "redacted": True}
    (finding,) = judged(2, make_plan(), make_facts({"environment.variables": [secret]}))
    assert finding.evidence == ("NCCL_SECRET_KEY=*** (environment)",)
