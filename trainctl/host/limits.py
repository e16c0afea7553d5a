"""What the kernel lets this user have: open files, locked memory, the rendezvous port."""

from __future__ import annotations

import resource
import socket

from trainctl.host.facts import LimitFacts


def read_limits(port: int = 0) -> LimitFacts:
    """`port`: a rendezvous port that was set explicitly; 0 is not tried."""
    return LimitFacts(
        open_files=_soft(resource.RLIMIT_NOFILE),
        locked_memory_bytes=_soft(resource.RLIMIT_MEMLOCK),
        port=port,
        port_error=_try_port(port) if port else "",
    )


def _soft(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _try_port(port: int) -> str:
    """Bind as the rendezvous store will (address reuse on), and let go at once."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
