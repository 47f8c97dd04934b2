"""What a method can learn about the call it is in: `current_call()` inside the worker."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from fanfold.dispatch.errors import NoCallError


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


class serving:  # noqa: N801  # a block, in each call: no generator, which would cost more than twice as much
    """Make `call` the current one; for backends, around the method."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: CallContext) -> None:
        self._call = call

    def __enter__(self) -> None:
        """Begin the block."""
        self._token = _current.set(self._call)

    def __exit__(self, *_: object) -> None:
        """Make current what was current before."""
        _current.reset(self._token)
