"""Groups of rows as rows, and back. Letters: `B` rows, `G` groups, `M` rows of a group (B = G * M).

A jagged column has no rectangular group. It folds into a nested column with `folded_values`, jagged [G, ...], the
rows of a group one after the other, and `folded_lengths` [G, M]; unfolding knows it by these two names.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import indexing, jagged
from fanfold.dataproto import leaves as leaves_of
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnTypeError, SplitError
from fanfold.dataproto.jagged import Parts, Shared
from fanfold.dataproto.objects import Array

P = TypeVar("P", bound=DataProto)
_VALUES, _LENGTHS = "folded_values", "folded_lengths"


def fold_batch_dim(data: P, new_batch_size: int) -> P:
    """Return a batch of groups: every column [B, ...] becomes [G, M, ...], as views where memory allows.

    Args:
        data: the batch
        new_batch_size: G, which must divide B

    Raises:
        SplitError: it does not.

    >>> folded = fold_batch_dim(DataProto.from_dict({"x": torch.arange(6)}, {"s": list("abcdef")}), 2)
    >>> folded["x"].tolist(), folded["s"].tolist()
    ([[0, 1, 2], [3, 4, 5]], [['a', 'b', 'c'], ['d', 'e', 'f']])
    """
    _check(data)
    groups, rows = indexing.at_least("new_batch_size", new_batch_size, 1), len(data)
    if rows % groups:
        raise SplitError(f"{rows} rows cannot be folded into {groups} groups; expected a divisor of {rows}")
    shared, size = Shared(), rows // groups
    arrays = {name: array.reshape(groups, size, *array.shape[1:]) for name, array in data.non_tensor_batch.items()}
    return _changed(data, groups, lambda column: _folded(column, groups, size, shared), arrays)


def unfold_batch_dim(data: P, batch_dims: int = 2) -> P:
    """Return a batch whose rows are the entries of the first `batch_dims` dimensions: [G, M, ...] becomes [B, ...].

    Raises:
        SplitError: a column has fewer dimensions, or other leading sizes than the others.

    >>> unfold_batch_dim(DataProto.from_dict({"x": torch.arange(6).view(2, 3)}))["x"].tolist()
    [0, 1, 2, 3, 4, 5]
    """
    _check(data)
    dims = indexing.at_least("batch_dims", batch_dims, 1)
    sizes = _leading_sizes(data, dims)
    rows, shared = torch.Size(sizes).numel(), Shared()
    arrays = {name: array.reshape(rows, *array.shape[dims:]) for name, array in data.non_tensor_batch.items()}
    return _changed(data, rows, lambda column: _unfolded(column, dims, rows, shared), arrays)


def _check(data: object) -> None:
    if not isinstance(data, DataProto):
        raise ColumnTypeError(f"got a {type(data).__name__}; expected a DataProto")


def _changed(data: P, rows: int, change: Callable[[Column], Column], arrays: dict[str, Array]) -> P:
    found = data._tensors()
    return data._derive(None if found is None else found.views(rows, change), arrays, data._meta_for_view())


def _folded(column: Column, groups: int, size: int, shared: Shared) -> Column:
    if isinstance(column, Tensor):
        if column.is_nested:
            return _folded_jagged(column, groups, size, shared)
        return column.reshape(groups, size, *column.shape[1:])
    if column_rules.is_tree(column):
        leaves = {name: _folded(leaf, groups, size, shared) for name, leaf in column.items()}
        return TensorDict(leaves, batch_size=[groups], device=column.device)
    if leaves_of.is_shared_value(column):
        return NonTensorData(column.data, batch_size=[groups, size, *column.batch_size[1:]])
    rows = leaves_of.rows_of_stack(column)
    if not rows:
        return NonTensorData(leaves_of.NO_ROWS, batch_size=[groups, size, *column.batch_size[1:]])
    return NonTensorStack(*[NonTensorStack(*rows[at * size : (at + 1) * size]) for at in range(groups)])


def _folded_jagged(column: Tensor, groups: int, size: int, shared: Shared) -> TensorDict:
    values, offsets, dim = jagged.parts(column, shared)

    def regroup() -> tuple[Tensor, Tensor]:
        bounds = offsets[::size] if size else torch.zeros(groups + 1, dtype=offsets.dtype, device=offsets.device)
        return bounds, offsets.diff().view(groups, size)

    bounds, lengths = shared.once(("fold", id(offsets)), offsets, regroup)
    return TensorDict({_VALUES: jagged.build(Parts(values, bounds, dim)), _LENGTHS: lengths}, batch_size=[groups])


def _leading_sizes(data: DataProto, dims: int) -> tuple[int, ...]:
    known: tuple[str, tuple[int, ...]] | None = None
    for name, column in [*data._columns().items(), *data.non_tensor_batch.items()]:
        sizes = _sizes(column, dims)
        if len(sizes) < dims:
            raise SplitError(f"column {name!r} has the dimensions {list(sizes)}; expected at least {dims} to unfold")
        if known is not None and sizes != known[1]:
            raise SplitError(
                f"column {name!r} starts with {list(sizes)}, {known[0]!r} with {list(known[1])}; expected the same"
            )
        known = known or (name, sizes)
    return (len(data),) if known is None else known[1]


def _sizes(column: Column, dims: int) -> tuple[int, ...]:
    if column_rules.is_tree(column):
        leaf = column[_LENGTHS] if _is_folded_jagged(column) else next(iter(column.values()), None)
        return tuple(column.batch_size[:dims]) if leaf is None else _sizes(leaf, dims)
    if isinstance(column, Tensor) and column.is_nested:
        return tuple(column.shape[: jagged.ragged_dim(column)][:dims])
    return tuple(column.shape[:dims])


def _is_folded_jagged(column: Column) -> bool:
    return column_rules.is_tree(column) and set(column.keys()) == {_VALUES, _LENGTHS}


def _unfolded(column: Column, dims: int, rows: int, shared: Shared) -> Column:
    if _is_folded_jagged(column):
        return _unfolded_jagged(column, shared)
    if isinstance(column, Tensor):
        return column if column.is_nested else column.reshape(rows, *column.shape[dims:])
    if column_rules.is_tree(column):
        leaves = {name: _unfolded(leaf, dims, rows, shared) for name, leaf in column.items()}
        return TensorDict(leaves, batch_size=[rows], device=column.device)
    if leaves_of.is_shared_value(column):
        return NonTensorData(column.data, batch_size=[rows, *column.batch_size[dims:]])
    if isinstance(column, NonTensorData):
        return NonTensorData(leaves_of.NO_ROWS, batch_size=[rows, *column.batch_size[dims:]])
    return leaves_of.restack(_flat_rows(column, dims), column)


def _flat_rows(column: Column, dims: int) -> list[Column]:
    if dims == 0:
        return [column]
    return [row for part in column.unbind(0) for row in _flat_rows(part, dims - 1)]


def _unfolded_jagged(column: TensorDict, shared: Shared) -> Tensor:
    values, bounds, dim = jagged.parts(column[_VALUES], shared)
    lengths = column[_LENGTHS].reshape(-1)

    def offsets() -> Tensor:
        return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(bounds.dtype)

    return jagged.build(Parts(values, shared.once(("unfold", id(bounds)), bounds, offsets), dim))
