"""What is sent to ranks: pickled once, opened on the rank when it is wanted, writable or over the store's own memory.

Ray hands out arrays over memory that all readers of a node share and none may write into. A method may write into its
arguments unless it is registered `inputs="readonly"`, so buffers are copied once for each rank that reads them. Batches
that are batches by their own methods are sent as they are: they know about memory that must not be written.
"""

from __future__ import annotations

import io
import operator
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import batch_type_of
from fanfold.ray.errors import StoreFullError
from fanfold.worker import NotPicklableError

import ray
from ray import cloudpickle
from ray.actor import ActorHandle
from ray.exceptions import ObjectStoreFullError, OutOfDiskError

if TYPE_CHECKING:
    from collections.abc import Sequence

TRAVELS_WITH_CALL = 16384  # bytes; below that, putting a value into the store first would cost more than it saves
# Calls of eight ranks took 0.6 to 0.8 of the time that they took with the store, with 11, 45 and 57 KB for each. Ray
# puts arguments from 100 KiB on into the store itself.
BATCH_TRAVELS_WITH_CALL = 96 * 1024  # bytes
# Measured with 92 and 12 MB in two and eight shards: threads took 0.6 of the time for 11 MB each and more, and as long
# for less.
_WORTH_A_THREAD = 8 << 20  # bytes
_THREADS = 4
_SCALARS = (type(None), bool, int, float, complex)


@dataclass(frozen=True)
class Parcel:
    """A value on its way to ranks.

    Attributes:
        stream: The value, pickled.
        buffers: The memory that the stream refers to.
        references: Ray's own references inside the value, beside the stream, where Ray counts them.
    """

    stream: bytes
    buffers: Sequence[Any]
    references: Sequence[Any]

    @property
    def size(self) -> int:
        """Bytes of stream and buffers together."""
        return len(self.stream) + sum(len(memoryview(buffer).cast("B")) for buffer in self.buffers)

    def open(self, *, readonly: bool = False) -> Any:
        """Return the value; unless `readonly`, over memory of its own."""
        buffers = self.buffers if readonly else [bytearray(memoryview(buffer)) for buffer in self.buffers]
        return _Unpickler(io.BytesIO(self.stream), self.references, buffers).load()


def pack(value: Any, what: str) -> Parcel:
    """Pickle a value; its buffers still are its own memory.

    Raises:
        NotPicklableError: The value, named by `what`, cannot travel.
    """
    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler = _Pickler(stream, buffers)
    try:
        pickler.dump(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # a user's __reduce__ may raise anything
        raise NotPicklableError(f"{what} cannot travel to another rank: {type(error).__name__}: {error}") from error
    return Parcel(stream.getvalue(), buffers, pickler.references)


def placed(value: Any, what: str) -> Any:
    """Return what to hand to ranks instead of a value: itself, a small parcel, or a reference to what is in the store.

    Raises:
        NotPicklableError: The value, named by `what`, cannot travel.
    """
    if isinstance(value, (ray.ObjectRef, *_SCALARS)) or (
        isinstance(value, (str, bytes)) and len(value) <= TRAVELS_WITH_CALL
    ):
        return value
    batch = is_batch(value)
    if batch and not _may_be_small(value):
        return put(value, what)
    parcel = pack(value, what)
    if parcel.size <= (BATCH_TRAVELS_WITH_CALL if batch else TRAVELS_WITH_CALL):
        return _whole(parcel)
    return put(value if batch else parcel, what)


def _may_be_small(batch: Any) -> bool:
    # What is in its cells only pickling can tell.
    known = _known_bytes(batch)
    return known is not None and known <= BATCH_TRAVELS_WITH_CALL


def _known_bytes(batch: Any) -> int | None:
    found = batch_type_of(batch)
    return None if found is None or found.nbytes is None else found.nbytes(batch)


def placed_together(values: Sequence[Any]) -> list[Any]:
    """Do so with all arguments of a call; where several are large, their memory is copied by several threads.

    Raises:
        NotPicklableError: A value cannot travel.
    """
    named = [f"an argument of type {type(value).__qualname__}" for value in values]
    large = [value for value in values if is_batch(value) and (_known_bytes(value) or 0) >= _WORTH_A_THREAD]
    if len(large) < 2:  # noqa: PLR2004  # nothing to do at the same time
        return [placed(value, what) for value, what in zip(values, named, strict=True)]
    with ThreadPoolExecutor(min(len(large), _THREADS), thread_name_prefix="fanfold-put") as threads:
        return list(threads.map(placed, values, named))


def opened(values: Sequence[Any], *, readonly: bool) -> list[Any]:
    """Return values as the method sees them."""
    return [_opened(value, readonly=readonly) for value in values]


def _opened(value: Any, *, readonly: bool) -> Any:
    if isinstance(value, Parcel):
        return value.open(readonly=readonly)
    return trusted(value) if readonly else value


def trusted(value: Any) -> Any:
    """Return a batch that shows its memory as it was received, to a method that promised not to write into it."""
    shows = getattr(value, "readonly", None) if is_batch(value) else None
    return shows() if callable(shows) else value


class _AsItIs:
    """Stands for a value in what Ray pickles, and arrives as the value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, ([self._value], 0)


def as_it_is(result: Any) -> Any:
    """Return what to give to Ray so that a result arrives with the types that it has.

    Ray does not pickle plain containers, and a bytearray in them arrives as bytes.
    """
    return _AsItIs(result) if type(result) in (bytearray, list, tuple, dict) else result


def _is_small_text(value: Any) -> bool:
    return isinstance(value, (str, bytes)) and len(value) <= TRAVELS_WITH_CALL


def is_batch(value: Any) -> bool:
    """Say whether a value is a batch by its own methods, which takes care of memory that must not be written."""
    return all(hasattr(type(value), method) for method in ("chunk", "concat", "__len__", "__getitem__"))


def put(value: Any, what: str) -> ray.ObjectRef[Any]:
    """Put a value into the object store.

    Raises:
        NotPicklableError: The value, named by `what`, cannot travel.
    """
    try:
        return ray.put(value)
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise StoreFullError(
            f"{what} has no room in this node's object store, nor in what that spills to: {error}. Free results and "
            "calls that nobody needs, start Ray with a larger --object-store-memory, or look at `fanfold doctor`"
        ) from error
    except Exception as error:  # a user's __reduce__ may raise anything
        raise NotPicklableError(f"{what} cannot travel to another rank: {type(error).__name__}: {error}") from error


def _whole(parcel: Parcel) -> Parcel:
    # Taken when the call is made: the caller may write into the value before the call is sent.
    return Parcel(parcel.stream, [bytes(memoryview(buffer)) for buffer in parcel.buffers], parcel.references)


class _Pickler(cloudpickle.CloudPickler):
    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)  # type: ignore[no-untyped-call]
        self.references: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, (ray.ObjectRef, ActorHandle)):
            return None
        self.references.append(value)
        return len(self.references) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, references: Sequence[Any], buffers: Sequence[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._references = references

    def persistent_load(self, position: Any) -> Any:
        return self._references[position]
