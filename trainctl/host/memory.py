"""Host memory that this process can really get: MemAvailable, cut down by its cgroups."""

from __future__ import annotations

from pathlib import Path

from trainctl.host.facts import MemoryFacts

# cgroup v1 writes "no limit" as a number near the top of the address space
_UNLIMITED_BYTES = 1 << 60


def read_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> MemoryFacts:
    """Raises OSError or ValueError when /proc/meminfo is not readable."""
    info: dict[str, int] = {}
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        info[name] = int(rest.split()[0]) * 1024
    if "MemAvailable" not in info or "MemTotal" not in info:
        raise ValueError("meminfo has no MemAvailable")
    limits = _limits(proc, cgroups)
    tightest = min(limits, key=lambda pair: pair[1], default=(None, None))
    return MemoryFacts(
        total_bytes=info["MemTotal"],
        available_bytes=info["MemAvailable"],
        limit_bytes=tightest[0],
        limit_available_bytes=tightest[1],
    )


def _limits(proc: Path, cgroups: Path) -> list[tuple[int, int]]:
    """(limit, what is left of it) of every cgroup from this process' own up to the root."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[tuple[int, int]] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            for root in (cgroups, cgroups / "unified"):
                found += _climb(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += _climb(cgroups / "memory", path, *names)
    return found


def _climb(root: Path, path: str, limit: str, usage: str, cache: str) -> list[tuple[int, int]]:
    """In a container the path may be that of the host: then only the root itself is there."""
    found = []
    here = root / path.lstrip("/")
    while True:
        try:
            limit_bytes = int((here / limit).read_text())
            used_bytes = int((here / usage).read_text())
        except (OSError, ValueError):  # absent, or "max"
            pass
        else:
            if limit_bytes < _UNLIMITED_BYTES:
                left = limit_bytes - used_bytes + _cache_bytes(here, cache)
                found.append((limit_bytes, max(0, min(limit_bytes, left))))
        if here == root:
            return found
        here = here.parent


def _cache_bytes(cgroup: Path, key: str) -> int:
    """File pages that the kernel drops before it ends anybody: they count as used, yet are free."""
    try:
        for line in (cgroup / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
