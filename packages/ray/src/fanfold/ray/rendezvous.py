"""A port for the ranks' first meeting, held by rank 0's process until somebody there binds it.

A socket that is bound, never listens and has SO_REUSEADDR keeps the port from everybody who lets the system choose
one, while torch's TCPStore (which sets SO_REUSEADDR too) can bind over it. Whoever binds from Python without that
option gets it as well: Python tells an audit hook before it binds, and the hook lets go.
"""

from __future__ import annotations

import socket
import sys
from typing import Any


class HeldPort:
    """A port of this machine that nobody else is given.

    Args:
        port_range: The first port and the one after the last to choose from; any free port if None.

    Raises:
        OSError: Every port of the range is in use.
    """

    def __init__(self, port_range: tuple[int, int] | None = None) -> None:
        self._socket: socket.socket | None = _bound(port_range)
        self.port = int(self._socket.getsockname()[1])
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.bind" and self._socket is not None and _port(arguments) == self.port:
            self.release()

    def release(self) -> None:
        """Let go of the port; doing it twice is fine."""
        held, self._socket = self._socket, None
        if held is not None:
            held.close()


def _bound(port_range: tuple[int, int] | None) -> socket.socket:
    if port_range is None:
        return _bind(0)
    for port in range(*port_range):
        try:
            return _bind(port)
        except OSError:
            continue
    raise OSError(f"no port of {port_range[0]} to {port_range[1] - 1} is free on {socket.gethostname()}")


def _bind(port: int) -> socket.socket:
    # One socket for both families where there is IPv6, as torch's TCPStore listens.
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind(("", port))
        # Only now: with the option, a chosen port could be one that another rank 0 holds in the same way.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        held.close()
        raise
    return held


def _port(arguments: tuple[Any, ...]) -> int | None:
    address = arguments[1] if len(arguments) > 1 else None
    return address[1] if isinstance(address, tuple) and len(address) > 1 else None


def in_collectives(_: object = None) -> bool:
    """Say whether this process is a member of a torch process group with others, without importing torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)
