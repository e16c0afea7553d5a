"""Versions and origins of what will run. Nothing is imported: importing torch takes seconds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from pathlib import Path

from trainctl.host.facts import SoftwareFacts

_OURS = ("trainctl", "checks", "payload")


def read_software() -> SoftwareFacts:
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    return SoftwareFacts(
        python=platform.python_version(),
        torch=torch,
        roots={name: _root(name) for name in _OURS},
    )


def _root(package: str) -> str:
    """The directory that holds `package` on the import path, "" when nothing does."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return str(Path(places[0]).resolve().parent) if places else ""
