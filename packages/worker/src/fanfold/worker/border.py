"""What crosses between driver and rank is pickled; so the backends without a border of their own pickle too.

A bug that sharing objects would hide (a worker that writes into the caller's batch, an object that cannot travel) shows
on a laptop then and not in production. Buffers go out of band and are copied once for each reader.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.worker.errors import NotPicklableError

# Values that nobody can write into need no copy.
_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)


@dataclass(frozen=True)
class Packed:
    """A value on its way: a pickle stream and the buffers it refers to."""

    stream: bytes
    buffers: Sequence[pickle.PickleBuffer]

    def unpack(self) -> Any:
        """Return the value as it arrives: equal, and sharing no memory with the original or with other arrivals."""
        copies = [bytearray(buffer.raw()) for buffer in self.buffers]
        return pickle.loads(self.stream, buffers=copies)  # noqa: S301  # our own stream, from this process


def pack(value: Any, what: str) -> Any:
    """Pack a value for the border; what cannot be written into passes as it is.

    Raises:
        NotPicklableError: The value, named by `what`, cannot travel.
    """
    if type(value) in _IMMUTABLE:
        return value
    buffers: list[pickle.PickleBuffer] = []
    return Packed(_stream(value, what, buffers.append), buffers)


def unpack(value: Any) -> Any:
    """Take a value out of its package, if it has one."""
    return value.unpack() if isinstance(value, Packed) else value


def across(value: Any, what: str) -> Any:
    """Return a value as it would arrive on another rank."""
    return unpack(pack(value, what))


def _stream(value: Any, what: str, keep: Callable[[pickle.PickleBuffer], Any]) -> bytes:
    try:
        return _dumps()(value, protocol=5, buffer_callback=keep)
    except Exception as error:  # a user's __reduce__ may raise anything
        raise NotPicklableError(
            f"{what} cannot travel to another rank: {type(error).__name__}: {error}. Classes and functions must be "
            "importable there; with `pip install 'fanfold-worker[cloudpickle]'` lambdas, closures and what __main__ "
            "defines travel too"
        ) from error


def _dumps() -> Callable[..., bytes]:
    # Looked up at first use: cloudpickle is an extra, and importing it costs more than this whole package.
    try:
        return importlib.import_module("cloudpickle").dumps  # type: ignore[no-any-return]
    except ModuleNotFoundError:
        return pickle.dumps
