"""A running method is not stopped by force: it can ask whether its result is still wanted.

What a method returns after it was told that nobody wants it is not a result: it ended early, with a part of it or none.
"""

from __future__ import annotations

from contextvars import ContextVar

from fanfold.worker.errors import CallCancelledError


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


class cancellable:  # noqa: N801  # a block, in each call: no generator, which would cost more than twice as much
    """Let `cancelled()` answer from this flag, for the time of a block; for backends, around the method."""

    __slots__ = ("_flag", "_token")

    def __init__(self, flag: CancelFlag) -> None:
        self._flag = flag

    def __enter__(self) -> None:
        """Begin the block."""
        self._token = _flag_of_this_call.set(self._flag)

    def __exit__(self, *_: object) -> None:
        """Let it answer as before."""
        _flag_of_this_call.reset(self._token)
