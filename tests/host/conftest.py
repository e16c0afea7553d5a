"""A GPU driver without GPUs: a Python object in the place where nvidia-ml-py holds its library."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

GIB = 1 << 30


@dataclass
class FakeGpu:
    """errors: NVML function -> return code. hangs: functions that never return."""

    total: int = 80 * GIB
    used: int = 0
    reserved: int = GIB // 2
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    hangs: tuple[str, ...] = ()


class FakeLibrary:
    """Writes through the pointers that nvidia-ml-py passes, as the C library does."""

    def __init__(self, gpus: list[FakeGpu], missing: tuple[str, ...] = ()) -> None:
        self.gpus = gpus
        self.missing = missing
        self.init_code = 0
        self._handles: dict[int, tuple[Any, int]] = {}
        self.nvmlErrorString = functools.partial(lambda code: f"error {code}".encode())

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "missing"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def nvmlInitWithFlags(self, flags: int) -> int:
        return self.init_code

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        buffer.value = b"580.65.06"
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        self._handles[id(handle._obj)] = (handle._obj, index.value)
        return self._enter(handle._obj, "handle")

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = b"Test H100"
        return self._enter(handle, "name")

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = f"GPU-{self._index(handle):04d}-aa".encode()
        return self._enter(handle, "uuid")

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        gpu = self.gpus[self._index(handle)]
        memory._obj.total, memory._obj.used = gpu.total, gpu.used + gpu.reserved
        memory._obj.free = gpu.total - gpu.used - gpu.reserved
        return self._enter(handle, "memory")

    def nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> int:
        assert memory._obj.version == pynvml.nvmlMemory_v2
        memory._obj.reserved = self.gpus[self._index(handle)].reserved
        code = self.nvmlDeviceGetMemoryInfo(handle, memory)
        memory._obj.used -= memory._obj.reserved
        return code

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, entries: Any) -> int:
        code = self._enter(handle, "processes")
        processes = self.gpus[self._index(handle)].processes
        if code or not processes:
            count._obj.value = 0
            return code
        if entries is None:
            count._obj.value = len(processes)
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        for entry, (pid, used) in zip(entries, processes, strict=False):
            entry.pid = pid
            entry.usedGpuMemory = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value if used is None else used
        count._obj.value = len(processes)
        return 0

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, entries: Any) -> int:
        count._obj.value = 0
        return self._enter(handle, "graphics")

    def _index(self, handle: Any) -> int:
        return self._handles[id(handle)][1]

    def _enter(self, handle: Any, what: str) -> int:
        gpu = self.gpus[self._index(handle)]
        while what in gpu.hangs:
            time.sleep(1)
        return gpu.errors.get(what, 0)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeLibrary]:
    """install(gpus, missing) puts a library behind the real nvidia-ml-py."""

    def install(*gpus: FakeGpu, missing: tuple[str, ...] = ()) -> FakeLibrary:
        library = FakeLibrary(list(gpus), missing)
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return library

    return install


@pytest.fixture
def gpu() -> type[FakeGpu]:
    return FakeGpu
