"""Results that are not here yet, as values of the batch's own library.

A type of batches may say how a value of it is represented that does not exist yet (`lazy=` of its registration; of a
`DataProto` that is a `DataProtoFuture`). It is given a store and parts in it. Where the backend keeps results, each
rank's is a part; else the whole result of a call is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch import batch_type_of
from fanfold.worker.abilities import Keeps
from fanfold.worker.errors import GroupUsageError
from fanfold.worker.several import note_behind, stands_for_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.dispatch import CallPlan
    from fanfold.worker.backend import Backend
    from fanfold.worker.calls import Call
    from fanfold.worker.limits import Deadline


def promise_of(call: Call) -> Any:
    """Return what stands for the result of a call: in its batch's own library where it has that, else the call."""
    batch_type = call.plan.batch_type
    if call.plan.collecting != "join" or batch_type is None or batch_type.lazy is None:
        return call
    promised = getattr(call, "promised", None)  # of a call whose results stay: see `Keeps`
    if promised is None:
        return note_behind(batch_type.lazy(CallStore(call), [(_WHOLE, _WHOLE)]), call)
    return note_behind(_in_callers_order(batch_type.lazy(*promised()), call.plan), call)


def _in_callers_order(promise: Any, plan: CallPlan) -> Any:
    """Return rows that were dealt out by weight in the order in which the caller gave them."""
    way_back, found = plan.division and plan.division.way_back, batch_type_of(promise)
    return promise if not way_back or found is None else found.pick(promise, way_back)


def may_stay(plan: CallPlan, backend: Backend) -> bool:
    """Say whether results can stay with the ranks: they are put below each other, in an order that is known."""
    batch_type = plan.batch_type
    return (
        isinstance(backend, Keeps)
        and plan.collecting == "join"
        and plan.merge is None
        and batch_type is not None
        and batch_type.lazy is not None
        and plan.collects_each_place_once
    )


def passed_or_arrived(value: Any, backend: Backend, deadline: Deadline) -> Any:
    """Return what to place of a value that may not be here yet: its rows where they are, else the value."""
    elsewhere = callable(getattr(type(value), "deferred", None)) and isinstance(backend, Keeps)
    passed = backend.passed_on(value, deadline) if elsewhere else None  # type: ignore[attr-defined]
    return arrived(value, deadline) if passed is None else passed


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
