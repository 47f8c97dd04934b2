"""What becomes of results: the value of the only rank, a list, or batches put together in data-parallel order."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.batches import BatchType, batch_type_of
from fanfold.dispatch.errors import CollectError
from fanfold.dispatch.merge import merge_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanfold.dispatch.plan import CallPlan

Labelled = list[tuple[int, Any]]


def collected_value(plan: CallPlan, results: Mapping[int, Any]) -> Any:
    """Apply the plan's collect rule to results by rank.

    Raises:
        CollectError: a rank is missing, or rows would be lost or invented.
    """
    missing = [rank for rank in plan.collected if rank not in results]
    if missing:
        raise CollectError(
            f"{plan.label}: got no result of ranks {missing}, expected one of each of {list(plan.collected)}", results
        )
    labelled = [(rank, results[rank]) for rank in plan.collected]
    if plan.collecting == "single":
        return labelled[0][1]
    if callable(plan.collecting):
        return plan.collecting([_unpadded(plan, rank, value, strict=False) for rank, value in labelled])
    if plan.collecting == "join" and any(_is_joinable(value) for _, value in labelled):
        return _joined(plan, labelled)
    return [value for _, value in labelled] if plan.merge is None else merge_values(plan.label, plan.merge, labelled)


def join_batches(label: str, labelled: Labelled, merge: Any = None) -> Any:
    """One batch of all rows, in order.

    Args:
        label: the method, for messages.
        labelled: (rank, batch) in collect order, at least one.
        merge: the method's merge rules by key, for what is not rows.

    Raises:
        CollectError: values that are no batches of one type.
    """
    values = [value for _, value in labelled]
    batch_type = _common_type(values)
    if batch_type is None:
        told = ", ".join(f"rank {rank}: {type(value).__name__}" for rank, value in labelled[:8])
        raise CollectError(
            f"{label}: results cannot be put together, got {told}; expected one type of batch from every rank. "
            "Return the same type everywhere, or use a mode that collects a list",
            dict(labelled),
        )
    if merge is None:
        return _put_together(label, labelled, lambda: batch_type.concat(values))
    if batch_type.merge is None or not isinstance(merge, Mapping):
        raise CollectError(
            f"{label}: merge={merge!r} is for values that are no batches, or as a dict of rules for batch types that "
            f"have merge rules; got {batch_type.name}. Leave merge= away, or give merge= to register_batch_type",
            dict(labelled),
        )
    merger = batch_type.merge
    return _put_together(label, labelled, lambda: merger(values, merge))


def _put_together(label: str, labelled: Labelled, put: Callable[[], Any]) -> Any:
    try:
        return put()
    except Exception as problem:
        problem.add_note(f"{label}: while the results of ranks {[rank for rank, _ in labelled]} were put together")
        raise


def _joined(plan: CallPlan, labelled: Labelled) -> Any:
    _check_every_place_once(plan, labelled)
    joined = join_batches(plan.label, [(rank, _unpadded(plan, rank, value)) for rank, value in labelled], plan.merge)
    way_back = plan.division and plan.division.way_back
    if not way_back:
        return joined
    batch_type = batch_type_of(joined)
    assert batch_type is not None
    return batch_type.pick(joined, way_back)


def _check_every_place_once(plan: CallPlan, labelled: Labelled) -> None:
    """Dispatch and collect functions of different modes can be combined so that rows get lost or come twice."""
    if plan.division is not None and not plan.collects_each_place_once:
        collected = [plan.division.place[rank] for rank in plan.collected]
        raise CollectError(
            f"{plan.label}: batches came from the places {collected} along axis {plan.mesh.shard!r} (of ranks "
            f"{list(plan.collected)}), expected each place that has rows once and in order; use dispatch and collect "
            "functions of one mode",
            dict(labelled),
        )


def _unpadded(plan: CallPlan, rank: int, value: Any, *, strict: bool = True) -> Any:
    """The result without the rows that belong to padding.

    Rows of a result can be told to belong to rows of the argument only when there are equally many. Where that matters
    (some are padding, or were dealt out in another order) a result of another length is refused, never guessed at.
    """
    batch_type, rows, padding = batch_type_of(value), plan.rows(rank), plan.padding(rank)
    reordered = plan.division is not None and plan.division.order is not None
    if batch_type is None or rows is None or not (padding or reordered):
        return value
    if batch_type.length(value) == rows + padding:
        return batch_type.rows(value, 0, rows) if padding else value
    if strict:
        why = "of which the last are padding" if padding else "dealt out by weight"
        raise CollectError(
            f"{plan.label}: rank {rank} got {rows + padding} rows, {why}, and returned {batch_type.length(value)}; "
            "expected a row for each, or results and rows cannot be matched. Return one row per row, or register the "
            "method with uneven='split' and without balance",
            {rank: value},
        )
    return value


def _is_joinable(value: Any) -> bool:
    return batch_type_of(value) is not None or inspect.isgenerator(value) or inspect.isasyncgen(value)


def _common_type(values: Sequence[Any]) -> BatchType | None:
    first = batch_type_of(values[0])
    same = all(isinstance(value, type(values[0])) or batch_type_of(value) == first for value in values)
    return first if same else None
