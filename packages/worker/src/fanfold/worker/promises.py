"""Results that are not here yet, as values of the batch's own library.

A type of batches may say how a value of it is represented that does not exist yet (`lazy=` of its registration; of a
`DataProto` that is a `DataProtoFuture`). It is given a store and parts in it; here the whole result of a call is one
part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch import batch_type_of
from fanfold.worker.errors import GroupUsageError
from fanfold.worker.several import note_behind, stands_for_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.worker.calls import Call
    from fanfold.worker.limits import Deadline


def promise_of(call: Call) -> Any:
    """Return what stands for the result of a call: in its batch's own library where it has that, else the call."""
    batch_type = call.plan.batch_type
    if call.plan.collecting != "join" or batch_type is None or batch_type.lazy is None:
        return call
    return note_behind(batch_type.lazy(CallStore(call), [(_WHOLE, _WHOLE)]), call)


def arrived(value: Any, deadline: Deadline) -> Any:
    """Return the value that something stands for which is not here yet; anything else as it is.

    Raises:
        WaitTimeoutError: It did not come in time; or what its library raises then.
    """
    return value.result(deadline.left()) if stands_for_result(value) else value


_WHOLE = "the whole result"


class CallStore:
    """Where the one part of a call's result is: with the call."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def put(self, value: object) -> Any:
        """Refuse: what is stored for many calls belongs to a backend that stores things."""
        raise GroupUsageError(
            f"a local backend stores no {type(value).__qualname__} for later calls: it is here, pass it to each call"
        )

    def fetch(self, handles: Sequence[Any], timeout: float | None) -> list[Any]:
        """Return the result, once for each handle."""
        return [self.call.result(timeout)] * len(handles)

    def header(self, _: Any, timeout: float | None) -> dict[str, Any]:
        """Describe the result."""
        value = self.call.result(timeout)
        found = batch_type_of(value)
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if found is None:
            raise GroupUsageError(f"{self.call.label} returned {kind}, which has no rows; use the call's result()")
        columns = [] if found.columns is None else list(found.columns(value))
        nbytes = 0 if found.nbytes is None else found.nbytes(value)
        return {"type": kind, "rows": found.length(value), "columns": columns, "nbytes": nbytes}

    def free(self, handles: Sequence[Any]) -> None:
        """Do nothing: the result goes with the call."""

    def __reduce__(self) -> Any:
        raise TypeError(f"the result of {self.call.label} that is not here yet stays in its process; pass its result()")
