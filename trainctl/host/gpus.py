"""GPUs through NVML: identity, memory and who holds it. Read-only, no CUDA context is made.

Drives nvidia-ml-py itself; tests put a library object behind `pynvml.nvmlLib`. A call may block
for ever on a sick device, so run it under `deadline.read_all`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainctl.host.facts import Gpu, GpuFacts, GpuProcess
from trainctl.host.leftovers import describe

# What these mean for us: there is no such thing to read here, which is not trouble.
_NOT_HERE = {3, 13}  # NOT_SUPPORTED, FUNCTION_NOT_FOUND (older driver)


def read_gpus() -> GpuFacts:
    """Every device that NVML shows. Raises NVMLError when NVML is there and does not work."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return GpuFacts(absent="no NVML library (libnvidia-ml.so.1)")
        if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
            return GpuFacts(absent="the NVIDIA driver is not loaded")
        raise
    count = pynvml.nvmlDeviceGetCount()
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        driver = ""
    return GpuFacts(driver=driver, devices=tuple(_read_device(pynvml, index) for index in range(count)))


def _read_device(nvml: Any, index: int) -> Gpu:
    unreadable: list[str] = []

    def ask(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            if error.value not in _NOT_HERE or what == "memory":
                unreadable.append(f"{what}: {error}")
            return None

    handle = ask("handle", nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return Gpu(index=index, unreadable=tuple(unreadable))
    memory = _read_memory(nvml, handle, ask)
    processes = {
        kind: ask(f"{kind} processes", call, handle) or ()
        for kind, call in (
            ("compute", nvml.nvmlDeviceGetComputeRunningProcesses),
            ("graphics", nvml.nvmlDeviceGetGraphicsRunningProcesses),
        )
    }
    return Gpu(
        index=index,
        uuid=_text(ask("uuid", nvml.nvmlDeviceGetUUID, handle) or ""),
        name=_text(ask("name", nvml.nvmlDeviceGetName, handle) or ""),
        total_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        processes=tuple(
            GpuProcess(
                pid=int(entry.pid),
                used_bytes=None if entry.usedGpuMemory is None else int(entry.usedGpuMemory),
                kind=kind,
                process=describe(int(entry.pid)),
            )
            for kind, entries in processes.items()
            for entry in entries
        ),
        unreadable=tuple(unreadable),
    )


def _read_memory(nvml: Any, handle: Any, ask: Callable[..., Any]) -> Any:
    """v2 where the driver has it: v1 counts the driver's own reserve as used."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError as error:
        if error.value in _NOT_HERE:
            return ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle)
        return ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def visible(devices: Sequence[Gpu], selection: str | None) -> tuple[Gpu, ...]:
    """The devices that CUDA_VISIBLE_DEVICES = `selection` leaves, in its order; None leaves all.

    CUDA stops at the first entry that it does not know, and so does this. MIG instances are
    reported as their parent's absence: NVML lists parents.
    """
    if selection is None:
        return tuple(devices)
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in selection.split(",")):
        found = [
            gpu
            for gpu in devices
            if (entry.isdigit() and gpu.index == int(entry))
            or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))
        ]
        if len(found) != 1 or found[0] in chosen:
            break
        chosen.append(found[0])
    return tuple(chosen)
