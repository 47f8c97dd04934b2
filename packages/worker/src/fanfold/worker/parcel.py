"""A value on its way to another process of this machine: small in the message, large in memory that both can map."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fanfold.worker.border import is_immutable, pickled
from fanfold.worker.memory import Bytes, MemoryFile

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGE = 64 * 1024  # bytes from which two copies through a socket cost more than one into fresh memory and a map


@dataclass(frozen=True)
class Parcel:
    """The pickle stream of a value and its buffers, copied out of the sender's memory when the parcel was made.

    Attributes:
        chunks: The stream, then each buffer; None when they are in `file`.
        file: The same in memory that can be mapped.
    """

    chunks: Sequence[Bytes] | None
    file: MemoryFile | None

    def open(self, *, readonly: bool = False) -> Any:
        """Return the value; unless `readonly`, what it writes into its buffers is its own."""
        stream, *buffers = self._arrived(readonly=readonly)
        return pickle.loads(stream, buffers=buffers)  # noqa: S301  # a stream from our own driver or rank

    def _arrived(self, *, readonly: bool) -> Sequence[Bytes]:
        if self.file is not None:
            return self.file.views(writable=not readonly)
        assert self.chunks is not None  # a parcel has one of the two
        return self.chunks if readonly else [self.chunks[0], *map(bytearray, self.chunks[1:])]


def parcel(value: Any, what: str) -> Any:
    """Make a parcel of a value; a small one that nobody can write into passes as it is.

    Raises:
        NotPicklableError: The value, named by `what`, cannot travel.
    """
    if is_immutable(value) and not (isinstance(value, (str, bytes)) and len(value) >= LARGE):
        return value
    stream, buffers = pickled(value, what, leaves_process=True)
    chunks: list[Bytes] = [stream, *(buffer.raw() for buffer in buffers)]
    file = _file(chunks) if sum(map(len, chunks)) >= LARGE else None
    return Parcel(None if file else [bytes(chunk) for chunk in chunks], file)


def opened(value: Any, *, readonly: bool = False) -> Any:
    """Take a value out of its parcel, if it has one."""
    return value.open(readonly=readonly) if isinstance(value, Parcel) else value


def _file(chunks: Sequence[Bytes]) -> MemoryFile | None:
    try:
        return MemoryFile.holding(chunks)
    except OSError:  # no descriptor or no such memory left: the message itself still carries it
        return None
