"""Ports for a rendezvous that nobody else takes before it is used.

A socket that is bound, never listens and allows its address to be reused keeps others away from the port, while the
server that the port is meant for (torch's TCPStore) can still bind it.
"""

from __future__ import annotations

import contextlib
import socket


class HeldPort:
    """A free port, held until it is let go of.

    Args:
        host: The address to hold it on.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.address: tuple[str, int] = (host, self._socket.getsockname()[1])

    def release(self) -> None:
        """Let go of the port."""
        self._socket.close()

    def __del__(self) -> None:
        self.release()


def own_address(seen_from: str) -> str:
    """Return the address by which this machine is reached from another one; nothing is sent for that.

    Args:
        seen_from: Address of the other machine.
    """
    family = socket.AF_INET6 if ":" in seen_from else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((seen_from, 9))
        return str(probe.getsockname()[0])
    return "::1" if family == socket.AF_INET6 else "127.0.0.1"
