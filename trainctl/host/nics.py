"""Network interfaces and InfiniBand or RoCE ports, as /sys shows them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from trainctl.host.facts import HcaPort, Interface, NicFacts

_UP = 0x1  # IFF_UP in /sys/class/net/*/flags (linux/if.h)
# The flags file does not show IFF_RUNNING. The kernel derives it from these states; loopback and
# many virtual devices never report better than unknown.
_OPERATIONAL = ("up", "unknown")


def read_nics(sys: Path = Path("/sys"), addresses: Mapping[str, Sequence[str]] | None = None) -> NicFacts:
    """`addresses`: interface name -> IPv4 and IPv6 addresses; read from the kernel when None."""
    addresses = _addresses() if addresses is None else addresses
    interfaces = [
        Interface(
            name=path.name,
            running=bool(int(_read(path / "flags") or "0", 16) & _UP)
            and (_read(path / "operstate") or "unknown") in _OPERATIONAL,
            addresses=tuple(addresses.get(path.name, ())),
            speed_mbps=_speed_mbps(path),
        )
        for path in _entries(sys / "class" / "net")
        if (path / "flags").exists()
    ]
    ports = [
        HcaPort(
            device=device.name,
            port=int(port.name),
            state=(_read(port / "state") or "").rpartition(":")[2].strip(),
            rate_gbps=_rate_gbps(port),
            link_layer=_read(port / "link_layer") or "",
        )
        for device in _entries(sys / "class" / "infiniband")
        for port in _entries(device / "ports")
    ]
    return NicFacts(interfaces=tuple(interfaces), ports=tuple(ports))


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _speed_mbps(interface: Path) -> int | None:
    """The kernel answers -1, or an error, for a link without a speed."""
    try:
        speed = int(_read(interface / "speed") or "-1")
    except ValueError:
        return None
    return speed if speed > 0 else None


def _rate_gbps(port: Path) -> float | None:
    """ "400 Gb/sec (4X NDR)" -> 400.0."""
    try:
        return float((_read(port / "rate") or "").split()[0])
    except (ValueError, IndexError):
        return None


def _addresses() -> dict[str, list[str]]:
    wanted = (socket.AF_INET, socket.AF_INET6)
    return {
        name: [entry.address for entry in entries if entry.family in wanted]
        for name, entries in psutil.net_if_addrs().items()
    }
