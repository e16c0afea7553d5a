"""How many devices and cores a job may use here. Quick facts, no driver call that could block."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

_GPU_NODE = re.compile(r"nvidia\d+")


def usable_gpus(environ: Mapping[str, str], dev: Path = Path("/dev")) -> int:
    """GPUs that CUDA would see: device nodes, limited by CUDA_VISIBLE_DEVICES and by torch's build.

    A torch without CUDA cannot use any, however many there are.
    """
    if not torch_has_cuda():
        return 0
    try:
        nodes = sum(bool(_GPU_NODE.fullmatch(name)) for name in os.listdir(dev))
    except OSError:
        return 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nodes
    listed = 0
    for entry in visible.split(","):
        if entry.strip() in ("", "-1"):
            break  # CUDA ignores what follows the first invalid entry
        listed += 1
    return min(nodes, listed)


def torch_has_cuda() -> bool:
    """Whether the installed torch was built for CUDA, without importing it (that takes seconds)."""
    try:
        return not metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


def cpu_count() -> int:
    """Cores that this process may run on (an affinity mask or a cpuset may leave fewer than exist)."""
    return len(os.sched_getaffinity(0))
