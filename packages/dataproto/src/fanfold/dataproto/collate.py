"""From rows back to a batch. Letters: `B` rows."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict, is_tensor_collection
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.dense import as_movable
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnError, ColumnTypeError, MergeError
from fanfold.dataproto.item import DataProtoItem
from fanfold.dataproto.meta import copy_meta_deep
from fanfold.dataproto.merge import merged_meta
from fanfold.dataproto.objects import object_column


def collate_fn(x: Sequence[DataProtoItem]) -> DataProto:
    """Make a batch of rows, as a data loader does; rows whose tensors differ in one size make a jagged column.

    `meta_info` is merged as by `concat`. Non-tensor columns become object columns.

    Raises:
        MergeError: no rows, or rows with different columns.
        ColumnError: tensors that neither stack nor differ in exactly one dimension.

    >>> batch = DataProto.from_dict({"x": torch.arange(3)}, {"s": ["a", "b", "c"]})
    >>> collate_fn([batch[2], batch[0]])["x"]
    tensor([2, 0])
    """
    rows = list(x)
    if not rows:
        raise MergeError("collate_fn got no rows; expected at least one, because only a row knows the columns")
    for position, row in enumerate(rows):
        if not isinstance(row, DataProtoItem):
            raise ColumnTypeError(f"collate_fn: entry {position} is a {type(row).__name__}; expected a DataProtoItem")
    batches = [None if row.batch is None else dict(row.batch.items()) for row in rows]
    names = _common("tensor", [batch or {} for batch in batches])
    tensors = {name: stacked(name, [batch[name] for batch in batches if batch is not None]) for name in names}
    others = _common("non-tensor", [row.non_tensor_batch for row in rows])
    arrays = {name: object_column(row.non_tensor_batch[name] for row in rows) for name in others}
    batch = None if batches[0] is None else TensorDict(tensors, batch_size=[len(rows)], device=rows[0].batch.device)
    return DataProto(batch, arrays, copy_meta_deep(merged_meta([row.meta_info for row in rows], {})))


def _common(kind: str, parts: Sequence[Any]) -> list[str]:
    for position, part in enumerate(parts):
        if part.keys() != parts[0].keys():
            raise MergeError(
                f"collate_fn: row {position} has the {kind} columns {sorted(part)}; expected {sorted(parts[0])}, as row 0 has"
            )
    return list(parts[0])


def stacked(name: str, rows: list[Any]) -> Column:
    """Make one column of row values.

    Raises:
        ColumnError: the rows do not fit together.
    """
    first = rows[0]
    if all(isinstance(row, Tensor) for row in rows):
        return _stacked_tensors(name, rows)
    if all(column_rules.is_tree(row) for row in rows):
        names = _common(f"{name}.", rows)
        leaves = {leaf: stacked(f"{name}.{leaf}", [row.get(leaf) for row in rows]) for leaf in names}
        return TensorDict(leaves, batch_size=[len(rows), *first.batch_size], device=first.device)
    if all(column_rules.kind(row) == "objects" for row in rows):
        return NonTensorStack(*rows)
    if all(is_tensor_collection(row) for row in rows):
        return torch.stack(rows)
    raise ColumnError(f"column {name!r} has rows of the types {sorted({type(row).__name__ for row in rows})}; expected one")


def _stacked_tensors(name: str, rows: list[Tensor]) -> Tensor:
    if len({row.dtype for row in rows}) != 1:
        raise ColumnError(f"column {name!r} has rows of {sorted({str(row.dtype) for row in rows})}; expected one dtype")
    if len({row.shape for row in rows}) == 1:
        return torch.stack([as_movable(row) for row in rows]).view(rows[0].dtype)
    sizes = list(zip(*(row.shape for row in rows), strict=False))
    ragged = [dim for dim, found in enumerate(sizes) if len(set(found)) > 1]
    if len({row.dim() for row in rows}) != 1 or len(ragged) != 1:
        shapes = sorted({str(list(row.shape)) for row in rows})
        raise ColumnError(f"column {name!r} has rows of the shapes {shapes}; expected equal ones, or one ragged dimension")
    return jagged_of(rows, ragged[0])


def jagged_of(rows: list[Tensor], ragged: int) -> Tensor:
    """Make a jagged tensor of rows that differ in dimension `ragged` of a row."""
    values = torch.cat([as_movable(row) for row in rows], dim=ragged).view(rows[0].dtype)
    lengths = torch.tensor([row.shape[ragged] for row in rows], device=values.device)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=ragged + 1)
