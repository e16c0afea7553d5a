"""State of every random generator of a rank, as plain JSON values: no pickle in a checkpoint."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """python, numpy and torch on the CPU, and torch on the rank's own CUDA device."""
    version, words, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)
    assert isinstance(legacy, dict)  # what legacy=False promises
    state = {
        "python": [version, list(words), gauss],
        "numpy": {**legacy, "state": {**legacy["state"], "key": legacy["state"]["key"].tolist()}},
        "torch": bytes(torch.get_rng_state().tolist()).hex(),
    }
    if device.type == "cuda":
        state["cuda"] = bytes(torch.cuda.get_rng_state(device).tolist()).hex()
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """The inverse. A state saved without CUDA leaves the device's generator as it was seeded."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    inner = state["numpy"]["state"]
    np.random.set_state({**state["numpy"], "state": {**inner, "key": np.array(inner["key"], np.uint32)}})
    torch.set_rng_state(torch.tensor(list(bytes.fromhex(state["torch"])), dtype=torch.uint8))
    if device.type == "cuda" and "cuda" in state:
        raw = torch.tensor(list(bytes.fromhex(state["cuda"])), dtype=torch.uint8)
        torch.cuda.set_rng_state(raw, device)
