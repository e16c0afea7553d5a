"""The variables that libraries in a rank will read, each with the source that wins.

Order of strength: [env] of the configuration, this process' environment, what the launcher adds
when unset, then NCCL's files: NCCL_CONF_FILE (which replaces ~/.nccl.conf) and /etc/nccl.conf.
Values of names that look like secrets are dropped here, before anything can write them down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trainctl.host.facts import EnvironmentFacts, Variable

RELEVANT = (
    "NCCL_", "TORCH_", "TORCHELASTIC_", "PYTORCH_", "CUDA_", "NVIDIA_", "NSIGHT_CUDA_", "COMPUTE_PROFILE",
    "OPENCL_PROFILE", "OMP_", "MKL_", "KMP_", "GLOO_", "TP_", "UCX_", "FI_", "RDMAV_", "HSA_",
    "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONOPTIMIZE", "XDG_CACHE_HOME",
)  # fmt: skip
LAUNCHER = "trainctl"
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)


def read_environment(
    environ: Mapping[str, str],
    job_env: Mapping[str, str],
    defaults: Mapping[str, str],
    home: Path | None = None,
    etc: Path = Path("/etc"),
) -> EnvironmentFacts:
    """`environ`: of the launching process. `job_env`: [env]. `defaults`: what the
    launcher sets where neither says anything."""
    home = Path.home() if home is None else home
    unreadable: list[str] = []
    layers: list[tuple[str, Mapping[str, str]]] = [
        ("[env]", job_env),
        ("environment", environ),
        (LAUNCHER, defaults),
    ]
    named = job_env.get("NCCL_CONF_FILE") or environ.get("NCCL_CONF_FILE")
    for path in (Path(named) if named else home / ".nccl.conf", etc / "nccl.conf"):
        try:
            layers.append((str(path), parse_nccl_conf(path.read_text(errors="replace"))))
        except FileNotFoundError:
            if named and path == Path(named):
                unreadable.append(f"{path}: named by NCCL_CONF_FILE and not there")
        except OSError as error:
            unreadable.append(f"{path}: {error.strerror}")
    effective: dict[str, Variable] = {}
    shadowed: list[Variable] = []
    for source, values in layers:
        for name in sorted(values):
            if not name.startswith(RELEVANT):
                continue
            variable = _variable(name, values[name], source)
            if name not in effective:
                effective[name] = variable
            elif variable.value != effective[name].value and source != LAUNCHER:
                shadowed.append(variable)
    return EnvironmentFacts(
        variables=tuple(effective[name] for name in sorted(effective)),
        shadowed=tuple(shadowed),
        unreadable=tuple(unreadable),
    )


def parse_nccl_conf(text: str) -> dict[str, str]:
    """NAME=VALUE lines. NCCL strips neither quotes nor blanks, and of two equal names takes the first."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values.setdefault(name, value)
    return values


def _variable(name: str, value: str, source: str) -> Variable:
    if SECRET_NAME.search(name):
        return Variable(name=name, value="", source=source, redacted=True)
    return Variable(name=name, value=value, source=source)
