"""Calls to ranks in other processes: the reply that comes later, and waiting for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fanfold.worker import messages as say
from fanfold.worker.backend import Failure, Outcome, Success
from fanfold.worker.errors import CallCancelledError, RemoteError, WorkerLostError
from fanfold.worker.parcel import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Reply = say.Done | say.Failed | WorkerLostError | CallCancelledError


@dataclass(eq=False)
class ReplyHandle:
    """A call on one rank, and its reply once it is here."""

    call: int
    method: str
    reply: Reply | None = None
    callbacks: list[Callable[[], Any]] = field(default_factory=list, repr=False)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"the handle of a call of {self.method} stays in its process; pass the call itself or its result()"
        )

    def answer(self, reply: Reply) -> None:
        """Take the reply in; under the lock of the condition that waiters wait for."""
        self.reply = reply
        for callback in self.callbacks:
            callback()

    def outcome(self) -> Outcome:
        """Unpack the reply; on the thread that wants it."""
        match self.reply:
            case say.Done(_, value):
                return _opened(value, f"the result of {self.method}")
            case say.Failed():
                return Failure(error_in(self.reply), self.reply.trace, when=self.reply.when)
            case WorkerLostError() | CallCancelledError():
                return Failure(self.reply, lost=isinstance(self.reply, WorkerLostError))
        raise AssertionError(f"{self.method} was fetched before it had finished")


class AwaitsReplies:
    """The part of a backend that waits for replies; whoever answers a handle notifies the condition."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def wait(self, handles: Sequence[ReplyHandle], limit: float) -> set[int]:
        """Return the positions of finished calls as soon as there is one, or an empty set after `limit` seconds."""

        def finished() -> set[int]:
            return {position for position, handle in enumerate(handles) if handle.reply is not None}

        with self._changed:
            self._changed.wait_for(finished, limit)
            return finished()

    def fetch(self, handle: ReplyHandle) -> Outcome:
        """Unpack the outcome of a finished call."""
        return handle.outcome()

    def on_finished(self, handle: ReplyHandle, callback: Callable[[], Any]) -> None:
        """Have a callback called once when the call has finished; on any thread, at once if it has finished already."""
        with self._changed:
            if handle.reply is None:
                handle.callbacks.append(callback)
                return
        callback()


def error_in(failed: say.Failed) -> BaseException:
    """Return the error of a rank, or what can be said about it where its class is unknown here."""
    opened_error = _opened(failed.error, "an error")
    if isinstance(opened_error, Success) and isinstance(opened_error.value, BaseException):
        return opened_error.value
    return RemoteError(failed.class_name, failed.text)


def _opened(value: Any, what: str) -> Outcome:
    try:
        return Success(opened(value))
    except Exception as error:  # noqa: BLE001  # unpickling runs the user's code
        return Failure(
            RemoteError(
                f"{type(error).__module__}.{type(error).__qualname__}", f"{what} cannot be unpacked here: {error}"
            )
        )
