"""Collectors on hand-written /proc and /sys trees, and on real processes and files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainctl.host.environment import parse_nccl_conf, read_environment
from trainctl.host.facts import NodeFacts, ProcessInfo
from trainctl.host.leftovers import describe, read_leftovers, without_secrets
from trainctl.host.limits import read_limits
from trainctl.host.memory import read_memory
from trainctl.host.nics import read_nics
from trainctl.host.shm import read_shm
from trainctl.host.software import read_software
from trainctl.host.storage import read_storage
from trainctl.host.trainer import read_trainer

GIB = 1 << 30


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- memory ---------------------------------------------------------------------------------------


def meminfo(proc: Path, cgroup: str = "0::/job\n") -> None:
    write(proc / "meminfo", f"MemTotal: {64 * 1024 * 1024} kB\nMemAvailable: {48 * 1024 * 1024} kB\n")
    write(proc / "self" / "cgroup", cgroup)


def test_without_a_limit_memory_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    meminfo(tmp_path / "proc")
    facts = read_memory(tmp_path / "proc", tmp_path / "cgroup")
    assert (facts.usable_bytes, facts.capacity_bytes, facts.limit_bytes) == (48 * GIB, 64 * GIB, None)


def test_the_tightest_enclosing_cgroup_decides_and_file_cache_is_free(tmp_path: Path) -> None:
    meminfo(tmp_path / "proc", "0::/pod/job\n")
    cgroups = tmp_path / "cgroup"
    write(cgroups / "pod/job/memory.max", f"{32 * GIB}\n")
    write(cgroups / "pod/job/memory.current", f"{7 * GIB}\n")
    write(cgroups / "memory.max", "max\n")
    write(cgroups / "memory.current", "123\n")
    write(cgroups / "pod/memory.max", f"{8 * GIB}\n")
    write(cgroups / "pod/memory.current", f"{7 * GIB}\n")
    write(cgroups / "pod/memory.stat", f"anon 5\ninactive_file {3 * GIB}\n")
    facts = read_memory(tmp_path / "proc", cgroups)
    assert facts.limit_bytes == 8 * GIB
    assert facts.usable_bytes == 4 * GIB


def test_cgroup_v1_and_its_way_of_writing_unlimited(tmp_path: Path) -> None:
    meminfo(tmp_path / "proc", "4:memory,hugetlb:/job\n1:cpu:/\n")
    cgroup = tmp_path / "cgroup" / "memory" / "job"
    write(cgroup / "memory.limit_in_bytes", "9223372036854771712\n")
    write(cgroup / "memory.usage_in_bytes", f"{GIB}\n")
    assert read_memory(tmp_path / "proc", tmp_path / "cgroup").limit_bytes is None
    write(cgroup / "memory.limit_in_bytes", f"{2 * GIB}\n")
    assert read_memory(tmp_path / "proc", tmp_path / "cgroup").usable_bytes == GIB


def test_in_a_container_whose_path_is_the_hosts_the_root_is_read(tmp_path: Path) -> None:
    meminfo(tmp_path / "proc", "0::/../../outside\n")
    write(tmp_path / "cgroup" / "memory.max", f"{4 * GIB}\n")
    write(tmp_path / "cgroup" / "memory.current", f"{GIB}\n")
    assert read_memory(tmp_path / "proc", tmp_path / "cgroup").usable_bytes == 3 * GIB


# --- shared memory --------------------------------------------------------------------------------


def test_segments_that_nobody_maps_are_abandoned(tmp_path: Path) -> None:
    shm, proc = tmp_path / "shm", tmp_path / "proc"
    for name in ("nccl-mapped", "nccl-open", "torch_123_left", "sem.left", "somebody-elses-name"):
        write(shm / name, "x")
    write(proc / "77" / "maps", f"7f00-7f01 rw-s 0000 00:01 1    {shm}/nccl-mapped\n")
    (proc / "77" / "fd").mkdir()
    (proc / "77" / "fd" / "3").symlink_to(shm / "nccl-open")
    facts = read_shm(shm, proc)
    assert [segment.name for segment in facts.abandoned] == ["sem.left", "torch_123_left"]
    assert facts.total_bytes > 0


def test_a_real_mapping_of_this_process_is_in_use() -> None:
    import mmap

    path = Path("/dev/shm", f"torch_test_{os.getpid()}")
    try:
        with open(path, "w+b") as file:
            file.truncate(4096)
            mapping = mmap.mmap(file.fileno(), 4096)
        assert path.name not in [segment.name for segment in read_shm().abandoned]
        mapping.close()
        assert path.name in [segment.name for segment in read_shm().abandoned]
    finally:
        path.unlink()


# --- processes ------------------------------------------------------------------------------------


@pytest.fixture
def orphan() -> Iterator[int]:
    """A process with a run id whose parent, not a trainctl, has gone."""
    script = (
        "import subprocess, sys; print(subprocess.Popen("
        "[sys.executable, '-c', 'import time; time.sleep(600)'],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={"TRAINCTL_RUN_ID": "old-run", "TRAINCTL_RUN_DIR": "/runs/old"},
        capture_output=True,
        text=True,
        check=True,
    )
    pid = int(result.stdout)
    yield pid
    os.kill(pid, 9)


def test_a_process_of_a_run_without_supervisor_is_found(orphan: int) -> None:
    deadline = time.monotonic() + 30
    while (info := describe(orphan)) is not None and "sleep" not in info.command:  # before its exec
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = {info.pid: info for info in read_leftovers().of_runs}
    assert found[orphan].run_id == "old-run"
    assert found[orphan].run_dir == "/runs/old"
    assert found[orphan].ours


def test_a_process_under_a_living_trainctl_is_not_a_leftover(tmp_path: Path) -> None:
    script = write(
        tmp_path / "trainctl_supervisor.py",
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE,"
        " env={**os.environ, 'TRAINCTL_RUN_ID': 'live-run'})\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n",
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdin is not None
        worker = int(supervisor.stdout.readline())
        assert worker not in [info.pid for info in read_leftovers().of_runs]
        supervisor.stdin.close()


def test_a_zombie_is_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 30
    try:
        while child.pid not in [info.pid for info in read_leftovers().zombies]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        child.wait()


def test_secrets_on_a_command_line_are_not_kept() -> None:
    command = "train.py --api-key abc --hub_token=def --lr 3 WANDB_API_KEY=ghi --password -v"
    shown = "train.py --api-key *** --hub_token=*** --lr 3 WANDB_API_KEY=*** --password -v"
    assert without_secrets(command.split()) == shown.split()


# --- network --------------------------------------------------------------------------------------


def test_interfaces_and_ports_as_sys_shows_them(tmp_path: Path) -> None:
    net = tmp_path / "class" / "net"
    for name, flags, state, speed in (
        ("eth0", "0x1003", "up", "100000"),
        ("eth1", "0x1003", "down", "-1"),
        ("lo", "0x9", "unknown", ""),
        ("ib0", "0x1002", "down", "400000"),
    ):
        write(net / name / "flags", flags)
        write(net / name / "operstate", state)
        write(net / name / "speed", speed)
    write(net / "bonding_masters", "")
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    write(port / "state", "4: ACTIVE\n")
    write(port / "rate", "400 Gb/sec (4X NDR)\n")
    write(port / "link_layer", "InfiniBand\n")
    facts = read_nics(tmp_path, {"eth0": ["10.0.0.1"]})
    assert [(one.name, one.running, one.speed_mbps) for one in facts.interfaces] == [
        ("eth0", True, 100_000),
        ("eth1", False, None),
        ("ib0", False, 400_000),
        ("lo", True, None),
    ]
    assert facts.interfaces[0].addresses == ("10.0.0.1",)
    (hca,) = facts.ports
    assert (hca.device, hca.port, hca.state, hca.rate_gbps, hca.link_layer) == (
        "mlx5_0", 1, "ACTIVE", 400.0, "InfiniBand",
    )  # fmt: skip


def test_a_machine_without_infiniband_has_no_ports_and_this_one_has_loopback() -> None:
    names = [interface.name for interface in read_nics().interfaces if interface.running]
    assert "lo" in names


# --- environment ----------------------------------------------------------------------------------


def test_the_strongest_source_wins_and_the_others_are_kept(tmp_path: Path) -> None:
    write(
        tmp_path / "home" / ".nccl.conf",
        "NCCL_DEBUG=INFO\n# NCCL_ALGO=Ring\nNCCL_BUFFSIZE = 4\nNCCL_DEBUG=WARN\n",
    )
    write(tmp_path / "etc" / "nccl.conf", "NCCL_DEBUG=TRACE\nNCCL_IB_HCA=mlx5_0\n")
    facts = read_environment(
        {"NCCL_IB_HCA": "mlx5_1", "OMP_NUM_THREADS": "4", "HOME": "/x"},
        {"NCCL_IB_HCA": "mlx5_2"},
        {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"},
        home=tmp_path / "home",
        etc=tmp_path / "etc",
    )
    sources = {variable.name: (variable.value, variable.source) for variable in facts.variables}
    assert sources["NCCL_IB_HCA"] == ("mlx5_2", "[env]")
    assert sources["OMP_NUM_THREADS"] == ("4", "environment")
    assert sources["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == ("3", "trainctl")
    assert sources["NCCL_DEBUG"] == ("INFO", str(tmp_path / "home" / ".nccl.conf"))
    assert sources["NCCL_BUFFSIZE "][0] == " 4"  # NCCL trims nothing, so this names no variable of its own
    assert "HOME" not in sources
    assert [(one.name, one.value) for one in facts.shadowed] == [
        ("NCCL_IB_HCA", "mlx5_1"),
        ("NCCL_DEBUG", "TRACE"),
        ("NCCL_IB_HCA", "mlx5_0"),
    ]
    assert facts.get("NCCL_ALGO") is None


def test_nccl_conf_file_replaces_the_one_at_home_and_must_be_there(tmp_path: Path) -> None:
    write(tmp_path / "home" / ".nccl.conf", "NCCL_ALGO=Ring\n")
    named = write(tmp_path / "named.conf", "NCCL_PROTO=LL\n")
    facts = read_environment(
        {"NCCL_CONF_FILE": str(named)}, {}, {}, home=tmp_path / "home", etc=tmp_path / "etc"
    )
    assert (facts.get("NCCL_PROTO"), facts.get("NCCL_ALGO")) == ("LL", None)
    gone = read_environment({"NCCL_CONF_FILE": "/no/such.conf"}, {}, {}, home=tmp_path, etc=tmp_path)
    assert gone.unreadable == ("/no/such.conf: named by NCCL_CONF_FILE and not there",)


@pytest.mark.parametrize(
    "name", ["TORCH_HUB_TOKEN", "NCCL_SECRET_THING", "CUDA_API_KEY", "UCX_PASSWORD", "FI_credential"]
)
def test_secrets_are_never_stored(name: str, tmp_path: Path) -> None:
    facts = read_environment({name: "hunter2"}, {}, {}, home=tmp_path, etc=tmp_path)
    node = NodeFacts.model_validate({"host": "h", "time": 0.0, "environment": {"value": facts.model_dump()}})
    assert "hunter2" not in node.model_dump_json()
    assert facts.variables[0].redacted
    assert facts.get(name) is None


def test_conf_parser_takes_the_first_of_two_and_keeps_quotes() -> None:
    assert parse_nccl_conf('NCCL_A="x"\nNCCL_A=y\nno equals sign\n#NCCL_B=1\nNCCL_C=a=b') == {
        "NCCL_A": '"x"',
        "NCCL_C": "a=b",
    }


# --- storage, limits, software --------------------------------------------------------------------


def test_a_directory_that_can_be_written_is_tried_and_left_clean(tmp_path: Path) -> None:
    (place,) = read_storage({"run": tmp_path / "runs" / "new"}).places
    assert (place.error, place.exists, place.probed) == ("", False, str(tmp_path))
    assert place.free_bytes > 0
    assert place.filesystem
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_and_a_directory_that_refuses(tmp_path: Path) -> None:
    write(tmp_path / "file", "")
    facts = read_storage({"run": tmp_path / "file" / "runs", "ledger": Path("/proc/nowhere")})
    run, ledger = facts.places
    assert "not a directory" in run.error
    assert ledger.error  # the kernel lets nobody make files in /proc


def test_limits_and_a_port_that_is_taken() -> None:
    with socket.socket() as holder:
        holder.bind(("", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert "in use" in read_limits(port).port_error
    assert read_limits(port).port_error == ""
    assert read_limits().port == 0


def test_software_is_found_without_importing_torch() -> None:
    code = (
        "import sys; from trainctl.host.software import read_software;"
        " print(read_software().torch, 'torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split()[1] == "False"
    facts = read_software()
    assert shown.split()[0] == facts.torch
    assert len(set(facts.roots.values())) == 1
    assert "" not in facts.roots.values()


# --- entry point ----------------------------------------------------------------------------------


def test_the_trial_exception_is_recorded_by_the_real_reporter(tmp_path: Path) -> None:
    source = write(tmp_path / "train.py", "from trainctl import Reporter\n")
    facts = read_trainer(None, source, None, 60.0)
    assert facts.proof_error == ""
    assert facts.proof.startswith("RuntimeError with")
    assert facts.reports


def test_a_syntax_error_has_file_and_line(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", "x = 1\nif x\n")
    facts = read_trainer(script, script, None, 60.0)
    assert facts.syntax_error.startswith(f"{script}:2:")
    assert not facts.reports
    assert facts.proof == ""


def test_scripts_that_cannot_be_started(tmp_path: Path) -> None:
    plain = write(tmp_path / "run.sh", "#!/bin/sh\n")
    assert "not executable" in read_trainer(plain, plain, None, 1.0).problem
    plain.chmod(0o755)
    assert read_trainer(plain, plain, None, 1.0).problem == ""
    assert "no such file" in read_trainer(tmp_path / "gone", plain, None, 1.0).problem
    assert "No such file" in read_trainer(tmp_path / "gone.py", plain, None, 1.0).problem


def test_the_vocabulary_is_read_from_a_tokenizer(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", "")
    content = '{"added_tokens": [{"id": 9}], "model": {"vocab": {"a": 0, "b": 4}}}'
    tokenizer = write(tmp_path / "tokenizer.json", content)
    assert read_trainer(script, script, tokenizer, 1.0).vocab == 10
    tokenizer.write_text("{}")
    assert read_trainer(script, script, tokenizer, 1.0).vocab is None


def test_facts_survive_json_and_ignore_what_a_newer_version_adds() -> None:
    info = describe(os.getpid())
    assert isinstance(info, ProcessInfo)
    facts = NodeFacts.model_validate(
        {
            "host": "node01",
            "time": 1.5,
            "leftovers": {"value": {"stuck": [info.model_dump()]}, "error": "", "news": 1},
            "added_later": {"x": 1},
        }
    )
    assert NodeFacts.model_validate_json(facts.model_dump_json()) == facts
    assert facts.gpus.value is None
    assert facts.gpus.error == "not collected"
