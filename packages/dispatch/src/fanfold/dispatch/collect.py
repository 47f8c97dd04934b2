"""What becomes of results: one value, a list, or batches put together in data-parallel order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch.batches import BatchType, batch_type_of
from fanfold.dispatch.errors import CollectError
from fanfold.dispatch.merge import merge_values
from fanfold.dispatch.split import inverse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.dispatch.plan import CallPlan


def collected_value(plan: CallPlan, results: Mapping[int, Any]) -> Any:
    """Apply the plan's collect rule to results by rank."""
    missing = [rank for rank in plan.collected if rank not in results]
    if missing:
        raise CollectError(
            f"{plan.label}: no result of ranks {missing}; collect needs one from each of {list(plan.collected)}",
            results,
        )
    values = [results[rank] for rank in plan.collected]
    if callable(plan.collecting):
        return plan.collecting(values)
    if plan.collecting == "single":
        return values[0]
    if plan.collecting == "join" and any(batch_type_of(value) for value in values):
        return _joined(plan, values)
    return (
        values
        if plan.merge is None
        else merge_values(plan.label, plan.merge, list(zip(plan.collected, values, strict=True)))
    )


def join_batches(label: str, batches: Sequence[Any]) -> Any:
    """One batch of all rows, in order.

    Raises:
        CollectError: no batches, or results of different types.
    """
    if not batches:
        raise CollectError(f"{label}: there are no results to put together; at least one rank must be collected")
    types = [batch_type_of(batch) for batch in batches]
    first = types[0]
    if first is None or any(batch_type != first for batch_type in types):
        kinds = ", ".join(f"{place}: {type(batch).__name__}" for place, batch in enumerate(batches[:8]))
        raise CollectError(
            f"{label}: results of different types cannot be put together ({kinds}, in collect order); return one type of batch from every collected rank",
            dict(enumerate(batches)),
        )
    return first.concat(list(batches))


def _joined(plan: CallPlan, values: Sequence[Any]) -> Any:
    trimmed = [_without_padding(plan, rank, value) for rank, value in zip(plan.collected, values, strict=True)]
    joined = join_batches(plan.label, trimmed)
    division = plan.divisions.get(plan.mesh.shard)
    if division is None or division.cut.order is None:
        return joined
    batch_type = batch_type_of(joined)
    assert batch_type is not None
    return batch_type.pick(joined, inverse(division.cut.order))


def _without_padding(plan: CallPlan, rank: int, value: Any) -> Any:
    batch_type, rows, padding = batch_type_of(value), plan.rows(rank), plan.padding(rank)
    if batch_type is None or rows is None:
        return value
    _check_row_for_row(plan, rank, value, batch_type)
    return batch_type.rows(value, 0, rows) if padding else value


def _check_row_for_row(plan: CallPlan, rank: int, value: Any, batch_type: BatchType) -> None:
    rows, padding, division = plan.rows(rank) or 0, plan.padding(rank), plan.divisions[plan.mesh.shard]
    got = batch_type.length(value)
    if got == rows + padding or (not padding and division.cut.order is None):
        return
    why = (
        f"{padding} of them padding, which cannot be told apart in it"
        if padding
        else "in another order than the caller's, which cannot be restored"
    )
    raise CollectError(
        f"{plan.label}: rank {rank} was given {rows + padding} rows ({why}) and returned {got}; "
        "return one row per row, or register the method with uneven='split' and without balance",
        {rank: value},
    )
