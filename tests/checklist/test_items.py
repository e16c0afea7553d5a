"""Every item both ways: what is wrong raises its code, what is fine stays silent."""

from __future__ import annotations

from typing import Any

import pytest

from checks.base import Status
from checks.registry import CHECKS, CODES
from trainctl.host.facts import SOURCES

GIB = 1 << 30
SCRIPT = {"job.script": "train.py", "data.path": None}
BIG = {"model.hidden": 1024, "model.heads": 16, "model.layers": 24, "model.seq_len": 1024}
HANDLING, MONITORING = "NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"
ONE_RANK = {"cluster.procs_per_node": 1}
IDLE = {"index": 0, "total_bytes": 80 * GIB, "free_bytes": 80 * GIB}
FULL = {"index": 1, "total_bytes": 80 * GIB, "free_bytes": 0}
NO_DUMPS = {"dumps": {"exists": False}}
PROCESS = {
    "pid": 4242, "parent_pid": 1, "uid": 0, "user": "ann", "ours": True, "command": "python train.py",
    "state": "S", "age_s": 8040.0,
}  # fmt: skip
FOREIGN = {**PROCESS, "ours": False, "user": "bob", "state": "D", "wait_channel": "nfs_wait"}
PORT = {"device": "mlx5_0", "port": 1, "state": "ACTIVE", "rate_gbps": 400.0, "link_layer": "InfiniBand"}
OWN = {
    "step": 40,
    "name": "step-00000040",
    "world": 2,
    "identity_digest": "0123456789abcdef",
    "size_bytes": GIB,
}
TORN = [{"step": 60, "reason": "the manifest is torn"}]
SHADOWED = {"trainctl": "/a", "checks": "/a", "payload": "/b"}
FOUND_NONE = {"trainctl": "/a", "checks": "", "payload": "/a"}
WARMUP = {
    "ok": True, "step_s": 0.5, "save_s": 3.0, "load_s": 2.0, "checkpoint_bytes": GIB, "tokens_per_step": 4096,
    "peak_memory_bytes": [2 * GIB, 3 * GIB], "seconds": 20.0,
}  # fmt: skip


def ports(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"nics.ports": [{**PORT, **change} for change in changes]}


def devices(*names: str) -> dict[str, Any]:
    return ports(*({"device": name} for name in names))


def held(process: dict[str, Any] | None, free: int = 1 * GIB) -> dict[str, Any]:
    holder = {"pid": 4242, "used_bytes": 38 * GIB, "kind": "compute", "process": process}
    return {"free_bytes": free, "processes": [holder]}


# (code, plan arguments, facts arguments)
Case = tuple[str, dict[str, Any], dict[str, Any]]


def case(code: str, plan: dict[str, Any] | None = None, *, at: str = "cpu", **facts: Any) -> Case:
    save = facts.pop("save", None)
    return code, {"changes": plan, "device": at, "save": save}, facts


BAD = [
    # 1 drain
    case("TC101", at="cuda", gpu0=held(PROCESS)),
    case("TC101", at="cuda", gpu0={"free_bytes": 2 * GIB}),
    case("TC102", SCRIPT, at="cuda", gpu0=held(FOREIGN, free=40 * GIB)),
    case("TC103", changes={"leftovers.of_runs": [{**PROCESS, "run_id": "a", "run_dir": "/srv/runs/gpt"}]}),
    case("TC104", changes={"leftovers.of_runs": [{**PROCESS, "run_id": "b", "run_dir": "/elsewhere"}]}),
    case("TC105", changes={"leftovers.data_workers": [PROCESS]}),
    case("TC106", changes={"leftovers.stuck": [{**PROCESS, "state": "D", "wait_channel": "nfs_wait"}]}),
    case("TC107", changes={"shm.abandoned": [{"name": "nccl-1", "size_bytes": 9, "age_s": 600.0}]}),
    case("TC108", changes={"memory.available_bytes": GIB}),
    case("TC108", changes={"memory.limit_bytes": 2 * GIB, "memory.limit_available_bytes": GIB}),
    case("TC109", at="cuda", changes={"gpus": "no answer in 10 s"}),
    case("TC109", at="cuda", changes={"gpus.absent": "no NVML library", "gpus.devices": []}),
    case("TC109", at="cuda", gpu0={"free_bytes": None, "unreadable": ["memory: lost"]}),
    case("TC109", changes={"memory": "no answer in 10 s"}),
    case("TC110", changes={"leftovers": "no answer in 10 s"}),
    # 3 nics
    case("TC301", at="cuda", environ={"NCCL_SOCKET_IFNAME": "^=eth8,^=eth14"}),
    case("TC301", at="cuda", environ={"NCCL_SOCKET_IFNAME": "eth0, eth1"}),
    case("TC301", at="cuda", environ={"NCCL_SOCKET_IFNAME": "=^eth0"}),
    case("TC301", at="cuda", environ={"NCCL_SOCKET_IFNAME": "e"}),
    case("TC301", at="cuda", environ={"NCCL_IB_HCA": ",".join(f"mlx5_{n}" for n in range(17))}),
    case("TC301", at="cuda", environ={"NCCL_IB_HCA": "mlx5_0,,mlx5_1"}, changes=ports({})),
    case("TC302", at="cuda", environ={"NCCL_SOCKET_IFNAME": "ens3"}),
    case("TC302", at="cuda", environ={"NCCL_SOCKET_IFNAME": "=eth"}),
    case("TC302", at="cuda", environ={"NCCL_SOCKET_IFNAME": "eth1"}),  # has no address
    case("TC302", at="cuda", environ={"NCCL_SOCKET_IFNAME": "^eth,lo"}),
    case("TC303", at="cuda", environ={"NCCL_IB_HCA": "mlx5_0"}),
    case("TC303", at="cuda", environ={"NCCL_IB_HCA": "mlx5_0"}, changes=ports({"state": "DOWN"})),
    case("TC303", at="cuda", environ={"NCCL_IB_HCA": "=mlx5"}, changes=ports({})),
    case("TC303", at="cuda", environ={"NCCL_IB_HCA": "^mlx5"}, changes=ports({})),
    case("TC304", at="cuda", environ={"NCCL_IB_HCA": "mlx5_1"}, changes=devices("mlx5_1", "mlx5_10")),
    case("TC305", at="cuda", environ={"NCCL_IB_HCA": "mlx5"}, changes=ports({}, {"link_layer": "Ethernet"})),
    case("TC306", at="cuda", environ={"NCCL_IB_HCA": "mlx5"}, changes=ports({}, {"rate_gbps": 200.0})),
    case("TC307", environ={"GLOO_SOCKET_IFNAME": "et"}),
    case("TC307", environ={"GLOO_SOCKET_IFNAME": "^docker"}),
    case("TC307", environ={"GLOO_SOCKET_IFNAME": "=lo"}),
    case("TC307", environ={"GLOO_SOCKET_IFNAME": "eth1"}),
    case("TC307", environ={"TP_SOCKET_IFNAME": "eth0,eth7"}),
    case("TC308", at="cuda", environ={"NCCL_NET": "Socket"}, changes=ports({})),
    case("TC308", at="cuda", environ={"NCCL_IB_DISABLE": "1"}, changes=ports({})),
    case("TC309", {"cluster.nodes": 2}, at="cuda"),
    case("TC310", changes={"nics": "no answer in 10 s"}),
    # 4 memory budget
    case("TC401", {**BIG, "train.micro_batch": 64}, at="cuda"),
    case("TC401", changes={"memory.total_bytes": GIB}),
    case("TC402", at="cuda", warmup={**WARMUP, "peak_memory_bytes": [GIB, 79 * GIB]}),
    case("TC403", at="cuda", warmup={**WARMUP, "peak_memory_bytes": [10 * GIB]}),
    case("TC404", at="cuda", changes={"gpus": "no answer in 10 s"}),
    case("TC404", changes={"memory": "no answer in 10 s"}),
    case("TC405", {"data.tokenizer": "tokenizer.json"}),
    case("TC406", SCRIPT),
    # 5 warm-up
    case("TC501", warmup={"ok": False, "error": "rank 1: out of device memory", "log": "last line"}),
    case("TC502"),
    # 6 divisibility
    case("TC601", {"parallel.dp": 3}),
    case("TC601", {"parallel.tp": 4}),
    case("TC601", {"cluster.procs_per_node": 6, "parallel.tp": 4}),
    case("TC602", {"parallel.ep": 4}),
    case("TC603", {"train.global_batch": 12}),
    case("TC603", {"train.global_batch": 8}),
    case("TC604", {"parallel.pp": 2, "model.layers": 5}),
    case("TC605", {"cluster.procs_per_node": 3, "parallel.tp": 3, "model.vocab": 258}),
    case("TC606", {"parallel.tp": 2, "model.kv_heads": 1}),
    case("TC607", {"parallel.tp": 2, "model.vocab": 50257}),
    case("TC608", {"parallel.cp": 2, "model.seq_len": 254}),
    case("TC609", {"model.hidden": 250}),
    case("TC610", {"model.hidden": 252}),
    case("TC611", {"model.kv_heads": 3}),
    case("TC612", {"cluster.nodes": 4, "parallel.tp": 4}),
    case("TC613", {"parallel.tp": 2, "data.tokenizer": "tokenizer.json"}),
    # 7 timeouts
    case("TC701", {"train.collective_timeout_s": 1800}),
    case("TC701", {"train.collective_timeout_s": 60, "watchdog.stall_s": 60}),
    case("TC702", save={"cost_s": 700.0}),
    case("TC702", {"train.collective_timeout_s": 30}, warmup={**WARMUP, "save_s": 40.0}),
    case("TC703", {"watchdog.stall_s": 601}),
    case("TC704", at="cuda", environ={f"TORCH_{HANDLING}": "0", MONITORING: "0"}),
    case("TC704", at="cuda", environ={HANDLING: "0", MONITORING: "false"}),
    case("TC705", at="cuda", environ={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "15"}),
    case("TC705", at="cuda", save={"cost_s": 500.0}),
    case("TC706", at="cuda", environ={f"TORCH_{HANDLING}": "3", "TORCH_NCCL_BLOCKING_WAIT": "1"}),
    case("TC707", SCRIPT),
    # 8 flight recorder
    case("TC801", environ={"TORCH_FR_BUFFER_SIZE": "0"}),
    case("TC801", environ={"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}),
    case("TC802", at="cuda", environ={"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}),
    case("TC802", at="cuda", environ={"TORCH_NCCL_ENABLE_MONITORING": "no"}),
    case("TC803", at="cuda", places={"dumps": {"error": "Read-only file system"}}),
    case("TC803", at="cuda", environ={"TORCH_FR_DUMP_TEMP_FILE": "/gone/r_"}, places=NO_DUMPS),
    case("TC804", changes={"software.torch": "2.9.1+cu128"}),
    case("TC805", environ={"TORCH_FR_BUFFER_SIZE": "abc"}),
    case("TC805", changes={"software": "no answer in 10 s"}),
    # 9 exceptions
    case("TC901", SCRIPT, changes={"trainer.syntax_error": "/srv/train.py:2: invalid syntax"}),
    case("TC902", SCRIPT, changes={"trainer.problem": "/srv/train.py: No such file or directory"}),
    case("TC903", SCRIPT, changes={"trainer.reports": False}),
    case("TC904", changes={"trainer.proof_error": "the trial exception left no report"}),
    case("TC905", changes={"trainer": "no answer in 10 s"}),
    # 10 logs
    case("TC1001", places={"run": {"error": "Read-only file system"}}),
    case("TC1002", places={"ledger": {"error": "Permission denied"}}),
    case("TC1003", {"train.steps": 10**7}, places={"run": {"free_bytes": GIB}}),
    case("TC1004", places={"run": {"free_inodes": 12}}),
    case("TC1005", changes={"storage": "no answer in 10 s"}),
    # 11 watchdog
    case("TC1101", {"watchdog.stall_s": 30}),
    case("TC1101", save={"step_s": 400.0}),
    case("TC1101", {"watchdog.stall_s": 90}, warmup={**WARMUP, "step_s": 50.0}),
    case("TC1105", save={"step_s": 400.0, "step_basis": "assumed 400 s, no step recorded yet"}),
    case("TC1102", {"watchdog.stall_s": 7200}),
    case("TC1103", SCRIPT, changes={"trainer.reports": False}),
    case("TC1104", SCRIPT, changes={"trainer": "no answer in 10 s"}),
    # 12 interval
    case("TC1201", save={"basis": "config", "steps": 5, "overhead": 0.08}),
    case("TC1202", places={"run": {"free_bytes": 3 * GIB}}, warmup=WARMUP),
    case("TC1203", changes={"storage": "no answer in 10 s"}),
    case("TC1204", SCRIPT),
    # 13 resume
    case("TC1301", changes={"resume": {**OWN, "rejected": TORN}}),
    case("TC1302", changes={"resume": {**OWN, "identity_digest": "another"}}),
    case("TC1303", changes={"resume.rejected": TORN}),
    case("TC1304", changes={"resume": "no answer in 10 s"}),
    case("TC1305", changes={"resume": {**OWN, "world": 4}}),
    # 14 moe
    case("TC1400"),
    case("TC1401", {**SCRIPT, "model.experts": 8}),
    case("TC1402", {"model.experts": 8}),
    # health
    case("TC1501", {"cluster.procs_per_node": 4}, at="cuda"),
    case("TC1502", at="cuda", gpu0={"total_bytes": None, "free_bytes": None, "unreadable": ["handle: lost"]}),
    case("TC1503", at="cuda", changes={"gpus": "no answer in 10 s"}),
    case("TC1504", changes={"shm.free_bytes": 64 << 20}),
    case("TC1505", changes={"limits.open_files": 256}),
    case("TC1506", at="cuda", changes={"limits.locked_memory_bytes": 65536, **ports({})}),
    case("TC1507", {"cluster.rendezvous_port": 29500}, changes={"limits.port_error": "Address in use"}),
    case("TC1508", changes={"software.roots": SHADOWED}),
    case("TC1508", changes={"software.roots": FOUND_NONE}),
    case("TC1509", changes={"software.torch": "2.7.1"}),
    case("TC1509", changes={"software.torch": ""}),
    case("TC1510", changes={"shm": "no answer in 10 s"}),
]  # fmt: skip

# What must not raise anything but pass or skip, in any item.
GOOD = [
    case(""),
    case("", at="cuda"),
    case("", warmup=WARMUP),
    case("", ONE_RANK),
    case("", {"parallel.tp": 2}, at="cuda"),
    case("", {"parallel.pp": 2}),
    case("", {"parallel.cp": 2}),
    case("", {"parallel.ep": 2}),
    case("", {"model.kv_heads": 2, "model.tied_head": False}),
    case("", {"train.global_batch": 64}),
    case("", {"data.tokenizer": "t.json"}, changes={"trainer.vocab": 50304}),
    case("", {"data.path": "owt.bin", "model.vocab": 50304}),
    case("", {"train.collective_timeout_s": 900}),
    case("", save={"basis": "config", "steps": 70, "overhead": 0.0205}),
    case("", at="cuda", gpu0={"free_bytes": 60 * GIB}),  # enough for this model
    case("", {"train.micro_batch": 4}, at="cuda", environ={"CUDA_VISIBLE_DEVICES": "1,0"}),
    case("", ONE_RANK, at="cuda", gpu0={"free_bytes": 0}, environ={"CUDA_VISIBLE_DEVICES": "1"}),
    case("", ONE_RANK, at="cuda", changes={"gpus.devices": [IDLE, FULL]}),  # the second is not used
    case("", at="cuda", environ={"NCCL_SOCKET_IFNAME": "eth0"}),
    case("", at="cuda", environ={"NCCL_SOCKET_IFNAME": "eth"}),  # a prefix, nobody's full name
    case("", at="cuda", environ={"NCCL_SOCKET_IFNAME": "^docker,lo"}),
    case("", at="cuda", environ={"NCCL_SOCKET_IFNAME": "^=lo"}),
    case("", at="cuda", environ={"NCCL_IB_HCA": "mlx5_0"}, changes=devices("mlx5_0", "mlx4_0")),
    case("", at="cuda", environ={"NCCL_IB_HCA": "=mlx5_1:1"}, changes=devices("mlx5_1", "mlx5_10")),
    case("", at="cuda", environ={"NCCL_NET": "IB"}, changes=ports({})),
    case("", at="cuda", environ={"NCCL_NET": "Socket"}),
    case("", environ={"GLOO_SOCKET_IFNAME": "eth0"}),
    case("", environ={"GLOO_SOCKET_IFNAME": "lo,eth0"}),
    case("", environ={"GLOO_SOCKET_IFNAME": ""}),
    case("", environ={"TORCH_FR_BUFFER_SIZE": "20000"}),
    case("", at="cuda", environ={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    case("", at="cuda", environ={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "1200"}),
    case("", at="cuda", environ={"TORCH_FR_DUMP_TEMP_FILE": "/scratch/fr_"}),
    case("", at="cuda", places=NO_DUMPS),  # torch makes its default directory
    case("", changes={"shm.abandoned": [{"name": "nccl-1", "size_bytes": 9, "age_s": 3.0}]}),  # just starting
    case("", changes={"leftovers.zombies": [{**PROCESS, "state": "Z"}]}),  # hold nothing
    case("", changes={"memory.limit_bytes": 32 * GIB, "memory.limit_available_bytes": 30 * GIB}),
    case("", ONE_RANK, changes={"shm.free_bytes": 64 << 20}),
    case("", changes={"limits.locked_memory_bytes": 65536}),  # no fabric
    case("", {"cluster.rendezvous_port": 29500}, changes={"limits.port": 29500}),
    case("", places={"run": {"free_inodes": None}}),
    case("", changes={"resume": OWN}),
    case("", changes={"resume": {**OWN, "step": 5000}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "plan", "facts"), BAD, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_wrong_raises_its_code(
    code: str, plan: dict[str, Any], facts: dict[str, Any], make_plan: Any, make_facts: Any, judged: Any
) -> None:
    found = judged(CODES[code].item, make_plan(**plan), make_facts(**facts))
    assert code in [finding.code for finding in found]
    finding = next(finding for finding in found if finding.code == code)
    assert finding.status is CODES[code].status
    assert finding.summary == finding.summary.strip()
    assert not finding.summary.endswith(".")


@pytest.mark.parametrize(("_", "plan", "facts"), GOOD)
def test_what_is_fine_stays_silent_in_every_item(
    _: str, plan: dict[str, Any], facts: dict[str, Any], make_plan: Any, make_facts: Any
) -> None:
    made, node = make_plan(**plan), make_facts(**facts)
    for check in CHECKS:
        for finding in check.judge(made, [node]):
            assert finding.status in (Status.PASS, Status.SKIP), finding


def test_every_code_that_can_be_said_is_in_a_table() -> None:
    """Item 2 has its own table; the waiver code is said by the report."""
    tried = {code for code, _, _ in BAD}
    silent = {code.code for check in CHECKS for code in check.codes if code.status is Status.PASS}
    other = {code for code in CODES if CODES[code].item == 2} | {"TC1511"}
    assert set(CODES) - silent - other == tried


def test_a_node_on_which_nothing_could_be_read_passes_no_item_that_needs_facts(
    make_plan: Any, make_facts: Any
) -> None:
    node = make_facts(dict.fromkeys(SOURCES, "no answer in 10 s"))
    passed = {
        check.name
        for check in CHECKS
        for finding in check.judge(make_plan(device="cuda"), [node])
        if finding.status is Status.PASS
    }
    # these two are judged from the plan and its recorded measurements alone
    assert passed == {"divisibility", "timeouts", "watchdog"}


@pytest.mark.parametrize(
    ("item", "plan", "facts", "words"),
    [
        (1, {"device": "cuda"}, {"gpu0": held(FOREIGN)}, "user bob, 2 h 14 min, state D nfs_wait"),
        (1, {"device": "cuda"}, {"gpu0": held(None)}, "not visible in this container"),
        (4, {"changes": {**BIG, "train.micro_batch": 64}, "device": "cuda"}, {}, "train.micro_batch = "),
        (6, {"changes": {"parallel.tp": 4}}, {}, "works: TP 2 PP 1 CP 1 DP 1"),
    ],
)  # fmt: skip
def test_evidence_says_what_helps(
    item: int, plan: Any, facts: Any, words: str, make_plan: Any, make_facts: Any, judged: Any
) -> None:
    found = judged(item, make_plan(**plan), make_facts(**facts))
    assert words in "\n".join(line for finding in found for line in finding.evidence)


def test_only_what_this_user_may_end_is_offered_to_be_ended(
    make_plan: Any, make_facts: Any, judged: Any
) -> None:
    plan = make_plan(device="cuda")
    assert judged(1, plan, make_facts(gpu0=held(PROCESS)))[0].fix == "kill 4242"
    assert judged(1, plan, make_facts(gpu0=held(FOREIGN)))[0].fix == ""
    assert judged(1, plan, make_facts(gpu0=held(None)))[0].fix == ""


def test_the_micro_batch_that_is_advised_does_fit(make_plan: Any, make_facts: Any, judged: Any) -> None:
    plan = make_plan({**BIG, "train.micro_batch": 64}, device="cuda")
    advice = judged(4, plan, make_facts())[0].evidence[-1]
    smaller = int(advice.split("=")[1].split()[0])
    for size, code in ((smaller, "TC400"), (smaller + 1, "TC401")):
        tried = make_plan({**BIG, "train.micro_batch": size}, device="cuda")
        assert judged(4, tried, make_facts())[0].code == code


def test_findings_name_the_host_they_are_about(make_plan: Any, make_facts: Any, judged: Any) -> None:
    full = make_facts(host="node02", gpu0=held(PROCESS))
    found = judged(1, make_plan(device="cuda"), make_facts(), full)
    assert [(finding.host, finding.code) for finding in found] == [("node01", "TC100"), ("node02", "TC101")]
