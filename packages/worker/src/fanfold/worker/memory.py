"""Memory without a name that other processes can map: written once, read by any number of ranks.

The file has no name in any directory, so nothing is left behind, whatever kills whom. A reader maps it privately: what
it writes is its own (the kernel copies a page at the first write), and what it only reads is never copied.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Bytes: TypeAlias = bytes | bytearray | memoryview

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register that reads arrays


class MemoryFile:
    """Chunks of bytes in one anonymous file.

    Args:
        descriptor: An open file descriptor, owned by this object from now on.
        sizes: Bytes of each chunk, in order.
    """

    def __init__(self, descriptor: int, sizes: Sequence[int]) -> None:
        self.descriptor = descriptor
        self.sizes = tuple(sizes)

    @classmethod
    def holding(cls, chunks: Sequence[Bytes]) -> MemoryFile:
        """Copy chunks into a new file.

        Raises:
            OSError: There is no memory or no file descriptor left.
        """
        file = cls(_anonymous_file(), [len(chunk) for chunk in chunks])
        for chunk, start in zip(chunks, file._starts(), strict=True):  # its own
            _write_all(file.descriptor, memoryview(chunk), start)
        return file

    def views(self, *, writable: bool) -> list[memoryview]:
        """Map the file and return its chunks; the map lives as long as one of them is referred to."""
        if not sum(self.sizes):
            return [memoryview(bytearray()) for _ in self.sizes]
        end = max(start + size for start, size in zip(self._starts(), self.sizes, strict=True) if size)
        whole = self._whole(end, writable=writable)
        return [whole[start : start + size] for start, size in zip(self._starts(), self.sizes, strict=True)]

    def _whole(self, end: int, *, writable: bool) -> memoryview:
        try:
            mapped = mmap.mmap(self.descriptor, end, access=mmap.ACCESS_COPY if writable else mmap.ACCESS_READ)
        except OSError:  # a map holds a descriptor of its own, and there may be none left
            return memoryview(_read_all(self.descriptor, end))
        return memoryview(mapped)

    def _starts(self) -> list[int]:
        starts, position = [], 0
        for size in self.sizes:
            starts.append(position)
            position += -(-size // ALIGNMENT) * ALIGNMENT
        return starts

    def __del__(self) -> None:
        with contextlib.suppress(OSError):  # the interpreter may be closing files itself by now
            os.close(self.descriptor)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fanfold", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write_all(descriptor: int, chunk: memoryview, position: int) -> None:
    # Written, not mapped: a full file system is an OSError here, and would be a SIGBUS through a map.
    while chunk:
        written = os.pwrite(descriptor, chunk, position)
        chunk, position = chunk[written:], position + written


def _read_all(descriptor: int, end: int) -> bytearray:
    content = bytearray()
    while len(content) < end:
        content += os.pread(descriptor, end - len(content), len(content))
    return content
