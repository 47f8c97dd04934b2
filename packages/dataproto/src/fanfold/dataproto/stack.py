"""Columns made of the values of their rows: stacked where shapes agree, jagged where they differ in one dimension.

Letters: `B` rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict, is_tensor_collection
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto.columns import Column
from fanfold.dataproto.dense import as_movable
from fanfold.dataproto.errors import ColumnError, MergeError


def common_names(kind: str, parts: Sequence[Any]) -> list[str]:
    """Return the names that all rows have.

    Raises:
        MergeError: a row has others; names its position.
    """
    expected = list(parts[0].keys())
    for position, part in enumerate(parts):
        if set(part.keys()) != set(expected):
            raise MergeError(
                f"row {position} has the {kind} columns {sorted(part.keys())}; expected {sorted(expected)}, "
                "as row 0 has"
            )
    return expected


def stacked(name: str, rows: list[Any]) -> Column:
    """Make one column of row values.

    Raises:
        ColumnError: the rows do not fit together.
    """
    first = rows[0]
    if all(isinstance(row, Tensor) for row in rows):
        return _stacked_tensors(name, rows)
    if all(column_rules.is_tree(row) for row in rows):
        names = common_names(f"{name}.", rows)
        leaves = {leaf: stacked(f"{name}.{leaf}", [row.get(leaf) for row in rows]) for leaf in names}
        return TensorDict(leaves, batch_size=[len(rows), *first.batch_size], device=first.device)
    if all(column_rules.kind(row) == "objects" for row in rows):
        return NonTensorStack(*rows)
    if all(is_tensor_collection(row) for row in rows):
        return torch.stack(rows)
    raise ColumnError(
        f"column {name!r} has rows of the types {sorted({type(row).__name__ for row in rows})}; expected one"
    )


def _stacked_tensors(name: str, rows: list[Tensor]) -> Tensor:
    if len({row.dtype for row in rows}) != 1:
        raise ColumnError(f"column {name!r} has rows of {sorted({str(row.dtype) for row in rows})}; expected one dtype")
    if len({row.shape for row in rows}) == 1:
        return torch.stack([as_movable(row) for row in rows]).view(rows[0].dtype)
    sizes = list(zip(*(row.shape for row in rows), strict=False))
    ragged = [dim for dim, found in enumerate(sizes) if len(set(found)) > 1]
    if len({row.dim() for row in rows}) != 1 or len(ragged) != 1:
        shapes = sorted({str(list(row.shape)) for row in rows})
        raise ColumnError(
            f"column {name!r} has rows of the shapes {shapes}; expected equal ones, or one ragged dimension"
        )
    return jagged_of(rows, ragged[0])


def jagged_of(rows: list[Tensor], ragged: int) -> Tensor:
    """Make a jagged tensor of rows that differ in dimension `ragged` of a row."""
    values = torch.cat([as_movable(row) for row in rows], dim=ragged).view(rows[0].dtype)
    lengths = torch.tensor([row.shape[ragged] for row in rows], device=values.device)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=ragged + 1)
