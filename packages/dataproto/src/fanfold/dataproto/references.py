"""Parts that are promises themselves, without a store: `concurrent.futures.Future`, or a reference that gives one.

Ray's object references give one (`ref.future()`), so they work here although nothing here knows Ray.
"""

import concurrent.futures
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from fanfold.dataproto.errors import RemoteError, RemoteTimeoutError
from fanfold.dataproto.parts import Header, header_of


def is_reference(value: object) -> bool:
    """Say whether this is a promise of a batch."""
    referring = callable(getattr(value, "future", None)) and not is_staged(value)
    return isinstance(value, concurrent.futures.Future) or referring


def is_staged(value: object) -> bool:
    """Say whether this is a `RemoteBatch`, whose `future()` is a `DataProtoFuture` and no promise."""
    return callable(getattr(value, "materialize", None))


class References:
    """A `PartStore` of promises; a part's header is known once the part is there.

    Args:
        limit: seconds to wait where the caller of `get` names none
    """

    def __init__(self, limit: float = 3600.0) -> None:
        self._limit = limit

    def put(self, value: object) -> NoReturn:
        """Refuse: promises are made elsewhere."""
        raise RemoteError(f"a {type(value).__name__} cannot be stored here; expected the store of a backend")

    def fetch(self, handles: Sequence[Any], timeout: float | None) -> list[Any]:
        """Wait for all promises, at most `timeout` seconds together (None: the limit of this store).

        Raises:
            RemoteTimeoutError: one was not kept in time; says which.
        """
        seconds = self._limit if timeout is None else timeout
        until = time.monotonic() + seconds
        waiting = [handle if isinstance(handle, concurrent.futures.Future) else handle.future() for handle in handles]
        return [_kept(promise, position, seconds, until) for position, promise in enumerate(waiting)]

    def header(self, handle: Any, timeout: float | None) -> Header:
        """Wait for the part itself and describe it."""
        return header_of(self.fetch([handle], timeout)[0])

    def free(self, handles: Sequence[Any]) -> None:
        """Do nothing: whoever holds the promises lets go of them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, References)

    def __hash__(self) -> int:
        return hash(References)


def _kept(promise: Any, position: int, seconds: float, until: float) -> Any:
    try:
        return promise.result(max(0.0, until - time.monotonic()))
    except concurrent.futures.CancelledError as error:
        raise RemoteError(f"part {position} was cancelled by whoever was to make it") from error
    except concurrent.futures.TimeoutError as error:
        if not promise.done():
            raise RemoteTimeoutError(
                f"part {position} did not arrive within {seconds} s; raise timeout=, or ask what its rank does"
            ) from error
        raise  # a TimeoutError that the producer itself raised
