"""A running method is not stopped by force: it can ask whether its result is still wanted."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class CancelFlag:
    """Set once, from another thread, when nobody waits for a call any more."""

    def __init__(self) -> None:
        self.is_set = False


_flag_of_this_call: ContextVar[CancelFlag | None] = ContextVar("fanfold_cancel_flag", default=None)


def cancelled() -> bool:
    """Say whether the call that this code runs in was cancelled; false outside of a call."""
    flag = _flag_of_this_call.get()
    return flag is not None and flag.is_set


@contextmanager
def cancellable(flag: CancelFlag) -> Iterator[None]:
    """Let `cancelled()` answer from this flag, for the time of a block; for backends, around the method."""
    token = _flag_of_this_call.set(flag)
    try:
        yield
    finally:
        _flag_of_this_call.reset(token)
