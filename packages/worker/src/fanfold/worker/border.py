"""What crosses between driver and rank is pickled; so the backends without a border of their own pickle too.

A bug that sharing objects would hide (a worker that writes into the caller's batch, an object that cannot travel) shows
on a laptop then and not in production. Buffers go out of band and are copied once for each reader that may write.
"""

from __future__ import annotations

import importlib
import io
import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fanfold.worker.errors import NotPicklableError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Values that nobody can write into need no copy.
_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)

_HOW = (
    "Classes and functions must be importable on the rank; with `pip install 'fanfold-worker[cloudpickle]'` lambdas, "
    "closures and what __main__ defines travel too"
)


@dataclass(frozen=True)
class Packed:
    """A value on its way inside one process: a pickle stream, and the buffers it refers to, still the sender's own."""

    stream: bytes
    buffers: Sequence[pickle.PickleBuffer]

    def unpack(self) -> Any:
        """Return the value as it arrives: equal, and sharing no memory with the original or with other arrivals."""
        copies = [bytearray(buffer.raw()) for buffer in self.buffers]
        return pickle.loads(self.stream, buffers=copies)  # noqa: S301  # our own stream, from this process

    def unpack_readonly(self) -> Any:
        """Return the value over memory that all readers share and none can write into."""
        return pickle.loads(self.stream, buffers=self._snapshot)  # noqa: S301  # as above

    @cached_property
    def _snapshot(self) -> list[bytes]:
        return [bytes(buffer.raw()) for buffer in self.buffers]


def is_immutable(value: Any) -> bool:
    """Say whether a value can pass as it is, because nobody can write into it."""
    return type(value) in _IMMUTABLE


def pack(value: Any, what: str) -> Any:
    """Pack a value for the border; what cannot be written into passes as it is.

    Raises:
        NotPicklableError: The value, named by `what`, cannot travel.
    """
    return value if is_immutable(value) else Packed(*pickled(value, what))


def pack_now(value: Any, what: str) -> Any:
    """Pack a value and copy its buffers, so that what the sender does to it later is its own business.

    Raises:
        NotPicklableError: The value, named by `what`, cannot travel.
    """
    if is_immutable(value):
        return value
    stream, buffers = pickled(value, what)
    return Packed(stream, [pickle.PickleBuffer(bytes(buffer.raw())) for buffer in buffers])


def unpack(value: Any, *, readonly: bool = False) -> Any:
    """Take a value out of its package, if it has one."""
    if not isinstance(value, Packed):
        return value
    return value.unpack_readonly() if readonly else value.unpack()


def across(value: Any, what: str) -> Any:
    """Return a value as it would arrive on another rank."""
    return unpack(pack(value, what))


def pickled(value: Any, what: str, *, leaves_process: bool = False) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return the pickle stream of a value, and its buffers, which still are the value's own memory.

    Args:
        value: Anything.
        what: Its name for the error.
        leaves_process: Refuse what only this process could take out again: names in `__main__`.

    Raises:
        NotPicklableError: The value, named by `what`, cannot travel.
    """
    try:
        return _plainly(value, leaves_process=leaves_process)
    except Exception as error:  # noqa: BLE001  # a user's __reduce__ may raise anything
        return _by_value(value, what, error)


def _plainly(value: Any, *, leaves_process: bool) -> tuple[bytes, list[pickle.PickleBuffer]]:
    # In this process a class of __main__ stays the class it is, so that breakpoints in its source file are met.
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    if leaves_process and b"__main__" in stream:
        _ImportablePickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: False).dump(value)
    return stream, buffers


def _by_value(value: Any, what: str, why: Exception) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    try:
        # Looked up at first use: an extra, and importing it costs more than this whole package.
        cloudpickle = importlib.import_module("cloudpickle")
        return cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append), buffers
    except ModuleNotFoundError:
        error = why
    except Exception as later:  # noqa: BLE001  # as above
        error = later
    raise NotPicklableError(f"{what} cannot travel to another rank: {type(error).__name__}: {error}. {_HOW}") from error


class _ImportablePickler(pickle.Pickler):
    """Refuses what is pickled by a name that another process looks up in its own `__main__`."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, _FUNCTION)) and value.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in __main__, which a rank's process does not have"
            )
        return NotImplemented


_FUNCTION = type(pack)
