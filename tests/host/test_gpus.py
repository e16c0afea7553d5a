"""The real nvidia-ml-py against a library object: struct versions, two-call protocol, error codes."""

from __future__ import annotations

import os
import time
from typing import Any

import pynvml
import pytest

from trainctl.host.deadline import read_all
from trainctl.host.facts import Gpu
from trainctl.host.gpus import read_gpus, visible

GIB = 1 << 30


def test_free_memory_is_that_of_v2_and_used_leaves_out_the_drivers_reserve(nvml: Any, gpu: Any) -> None:
    nvml(gpu(used=40 * GIB), gpu())
    facts = read_gpus()
    assert facts.absent == ""
    assert facts.driver == "580.65.06"
    assert [device.free_bytes for device in facts.devices] == [39 * GIB + GIB // 2, 79 * GIB + GIB // 2]
    assert facts.devices[1].uuid == "GPU-0001-aa"
    assert facts.devices[0].name == "Test H100"


def test_holders_are_named_and_an_invisible_pid_stays_a_number(nvml: Any, gpu: Any) -> None:
    nvml(gpu(processes=[(os.getpid(), 3 * GIB), (2**22 + 7, None)]))
    mine, foreign = read_gpus().devices[0].processes
    assert mine.process is not None
    assert "pytest" in mine.process.command
    assert mine.process.ours
    assert mine.used_bytes == 3 * GIB
    assert foreign.process is None
    assert foreign.used_bytes is None


@pytest.mark.parametrize(
    ("code", "words"),
    [(15, "GPU is lost"), (4, "Insufficient Permissions"), (16, "GPU requires restart"), (998, "error 998")],
)
def test_a_lost_gpu_is_unreadable_and_its_siblings_are_not(
    nvml: Any, gpu: Any, code: int, words: str
) -> None:
    nvml(gpu(errors={"memory": code}), gpu())
    lost, fine = read_gpus().devices
    assert lost.free_bytes is None
    assert lost.unreadable[0].startswith("memory: ")
    assert words in lost.unreadable[0]
    assert fine.unreadable == ()
    assert fine.free_bytes


def test_a_gpu_without_handle_is_listed_with_the_reason(nvml: Any, gpu: Any) -> None:
    nvml(gpu(errors={"handle": pynvml.NVML_ERROR_GPU_IS_LOST}))
    (device,) = read_gpus().devices
    assert device.total_bytes is None
    assert device.unreadable


def test_an_older_driver_without_v2_falls_back_to_v1(nvml: Any, gpu: Any) -> None:
    nvml(gpu(used=GIB), missing=("nvmlDeviceGetMemoryInfo_v2",))
    assert read_gpus().devices[0].free_bytes == 78 * GIB + GIB // 2


def test_what_a_card_does_not_support_is_not_trouble(nvml: Any, gpu: Any) -> None:
    nvml(gpu(errors={"uuid": 3, "processes": 3, "graphics": 3}))
    (device,) = read_gpus().devices
    assert device.unreadable == ()
    assert device.uuid == ""


def test_no_library_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    assert "no NVML library" in read_gpus().absent


def test_a_library_of_another_driver_is_an_error_not_an_empty_machine(nvml: Any, gpu: Any) -> None:
    nvml(gpu()).init_code = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    reading = read_all({"gpus": read_gpus}, 20.0)["gpus"]
    assert "value" not in reading
    assert "NVMLError" in str(reading["error"])


def test_a_call_that_never_returns_is_abandoned_and_the_others_are_not(nvml: Any, gpu: Any) -> None:
    nvml(gpu(hangs=("memory",)))

    def quick() -> Gpu:
        return Gpu(index=7)

    started = time.monotonic()
    readings = read_all({"gpus": read_gpus, "quick": quick}, 1.0)
    assert "no answer in 1 s" in str(readings["gpus"]["error"])
    assert readings["quick"]["value"] == Gpu(index=7).model_dump(mode="json")
    assert time.monotonic() - started < 60  # not the hour that the call would take


@pytest.mark.parametrize(
    ("selection", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-0001", [1]),
        ("1,9,0", [1]),
        ("1,1", [1]),
        ("-1", []),
        (" 0 , 2", [0, 2]),
    ],
)
def test_visible_devices_as_cuda_reads_them(selection: str | None, indices: list[int]) -> None:
    devices = [Gpu(index=index, uuid=f"GPU-000{index}-aa") for index in range(3)]
    assert [gpu.index for gpu in visible(devices, selection)] == indices
