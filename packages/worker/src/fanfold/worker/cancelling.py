"""A running method is not stopped by force: it can ask whether its result is still wanted.

What a method returns after it was told that nobody wants it is not a result: it ended early, with a part of it or none.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from fanfold.worker.errors import CallCancelledError

if TYPE_CHECKING:
    from collections.abc import Iterator


class CancelFlag:
    """Set once, from another thread, when nobody waits for a call any more."""

    def __init__(self) -> None:
        self.is_set = False
        self.was_noticed = False

    def refuse_result(self) -> None:
        """Raise if the method was told: what it has returned since is not what it returns when somebody waits.

        Raises:
            CallCancelledError: It was.
        """
        if self.was_noticed:
            raise CallCancelledError("this call ended early because it was cancelled; it has no result")


_flag_of_this_call: ContextVar[CancelFlag | None] = ContextVar("fanfold_cancel_flag", default=None)


def cancelled() -> bool:
    """Say whether the call that this code runs in was cancelled; false outside of a call."""
    flag = _flag_of_this_call.get()
    if flag is None or not flag.is_set:
        return False
    flag.was_noticed = True
    return True


@contextmanager
def cancellable(flag: CancelFlag) -> Iterator[None]:
    """Let `cancelled()` answer from this flag, for the time of a block; for backends, around the method."""
    token = _flag_of_this_call.set(flag)
    try:
        yield
    finally:
        _flag_of_this_call.reset(token)
