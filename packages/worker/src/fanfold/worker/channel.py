"""Messages over a Unix socket: a length, a pickled tuple, and the descriptors of the memory files that it refers to."""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fanfold.worker.errors import GroupUsageError
from fanfold.worker.memory import MemoryFile

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = struct.Struct("!QI")  # bytes of the body, number of descriptors
MOST_FILES = 200  # the kernel takes 253 descriptors in one message
_AT_ONCE = 1 << 20  # bytes asked of the socket at once


@dataclass
class Frame:
    """One encoded message, and how much of it is still to be sent."""

    rest: memoryview
    files: list[MemoryFile]

    def send(self, connection: socket.socket) -> bool:
        """Send what the socket takes now; say whether that was the rest.

        Raises:
            BlockingIOError: A non-blocking socket takes nothing now.
            OSError: The other end is gone.
        """
        sent = socket.send_fds(connection, [self.rest], [file.descriptor for file in self.files])
        self.rest, self.files = self.rest[sent:], []
        return not self.rest


def encode(message: Any) -> Frame:
    """Encode a message made of built-in values, our own records and parcels.

    Raises:
        GroupUsageError: It refers to more memory files than one message can carry.
    """
    files: list[MemoryFile] = []
    body = io.BytesIO()
    _Pickler(body, files).dump(message)
    if len(files) > MOST_FILES:
        raise GroupUsageError(
            f"one call has {len(files)} large arguments, more than {MOST_FILES}; put them into one list or dictionary"
        )
    header = _HEADER.pack(body.tell(), len(files))
    return Frame(memoryview(header + body.getvalue()), files)


@dataclass
class Decoder:
    """Makes messages out of what arrives, in whatever pieces it arrives."""

    received: bytearray = field(default_factory=bytearray)
    descriptors: deque[int] = field(default_factory=deque)

    def receive(self, connection: socket.socket) -> bool:
        """Take what is there; say whether the other end is still open.

        Raises:
            BlockingIOError: Nothing is there, on a non-blocking socket.
        """
        data, descriptors, _, _ = socket.recv_fds(connection, _AT_ONCE, MOST_FILES)
        self.received += data
        self.descriptors.extend(descriptors)
        return bool(data)

    def messages(self) -> Iterator[Any]:
        """Yield each message that is complete."""
        while len(self.received) >= _HEADER.size:
            length, files = _HEADER.unpack_from(self.received)
            end = _HEADER.size + length
            if len(self.received) < end:
                return
            body = bytes(memoryview(self.received)[_HEADER.size : end])
            del self.received[:end]
            yield _Unpickler(io.BytesIO(body), [self.descriptors.popleft() for _ in range(files)]).load()


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, files: list[MemoryFile]) -> None:
        super().__init__(stream, protocol=5)
        self._files = files

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, MemoryFile):
            return None
        self._files.append(value)
        return len(self._files) - 1, value.sizes


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, descriptors: list[int]) -> None:
        super().__init__(stream)
        self._descriptors = descriptors

    def persistent_load(self, identity: Any) -> Any:
        position, sizes = identity
        return MemoryFile(self._descriptors[position], sizes)
