"""What a method can learn about the call it is in: `current_call()` inside the worker."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from fanfold.dispatch.errors import NoCallError

if TYPE_CHECKING:
    from collections.abc import Iterator


class CallContext(NamedTuple):
    """The call that a worker is in.

    Attributes:
        method: the method's name.
        rank: this rank.
        world_size: W, the ranks of the group.
        padding: how many rows at the end of this rank's batches are padding; they are removed from its result.
    """

    method: str
    rank: int
    world_size: int
    padding: int = 0


_current: ContextVar[CallContext] = ContextVar("fanfold_current_call")


def current_call() -> CallContext:
    """The call that the running method serves.

    Raises:
        NoCallError: no call is being served here, for example because the method was called directly.
    """
    try:
        return _current.get()
    except LookupError:
        raise NoCallError(
            "current_call() was asked outside of a call; it is set only while a backend runs a method for a rank"
        ) from None


@contextmanager
def serving(call: CallContext) -> Iterator[None]:
    """Make `call` the current one; for backends, around the method."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)
