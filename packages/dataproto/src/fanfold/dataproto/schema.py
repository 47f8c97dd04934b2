"""What a batch looks like, as a value: made from a batch or written by hand, and checked against other batches.

Letters: `B` rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import jagged
from fanfold.dataproto.buffers import dtype_name
from fanfold.dataproto.columns import Column
from fanfold.dataproto.dense import COMPUTABLE
from fanfold.dataproto.errors import SchemaError
from fanfold.dataproto.jagged import Shared
from fanfold.dataproto.objects import Array
from fanfold.dataproto.text import short

OBJECTS, ARRAY = "objects", "array"


@dataclass(frozen=True)
class ColumnSchema:
    """What one column must be; None leaves a point open.

    Attributes:
        kind: "tensor", "jagged tensor", "TensorDict", "array" or "objects"
        dtype: name of the dtype, such as "int64"
        shape: shape of one row; None in it stands for any size
        cell: for object columns, the name of the type that every row must have, such as "str"
        finite: whether NaN and infinity are refused
        low: the least value allowed
        high: the largest value allowed
    """

    kind: str | None = None
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    cell: str | None = None
    finite: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Schema:
    """What a batch must be.

    Attributes:
        columns: what each column must be, tensor columns and others alike
        meta_keys: keys that `meta_info` must have
        closed: whether other columns are refused
    """

    columns: Mapping[str, ColumnSchema] = field(default_factory=dict)
    meta_keys: frozenset[str] = frozenset()
    closed: bool = False


def schema_of(columns: Mapping[str, Column], arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> Schema:
    """Describe the parts of a batch."""
    described = {name: _describe_column(column) for name, column in columns.items()}
    described.update({name: _describe_array(array) for name, array in arrays.items()})
    return Schema(described, frozenset(meta), closed=True)


def _describe_column(column: Column) -> ColumnSchema:
    if isinstance(column, Tensor):
        return ColumnSchema(column_rules.kind(column), dtype_name(column.dtype), jagged.row_shape(column))
    return ColumnSchema(column_rules.kind(column), None, tuple(column.batch_size[1:]))


def _describe_array(array: Array) -> ColumnSchema:
    if array.dtype != object:
        return ColumnSchema(ARRAY, str(array.dtype), tuple(array.shape[1:]))
    names = {type(cell).__name__ for cell in array.flat}
    return ColumnSchema(OBJECTS, "object", tuple(array.shape[1:]), names.pop() if len(names) == 1 else None)


def check(schema: Schema, columns: Mapping[str, Column], arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    """Compare the parts of a batch with a schema.

    Raises:
        SchemaError: the first column, key or row that is not as the schema says.
    """
    present = {**columns, **arrays}
    for name, expected in schema.columns.items():
        if name not in present:
            raise SchemaError(f"column {name!r} is missing; the batch has {sorted(present)}")
        _check_column(name, expected, present[name])
    added = sorted(present.keys() - schema.columns.keys())
    if schema.closed and added:
        raise SchemaError(f"column {added[0]!r} is not in the schema, which has {sorted(schema.columns)}")
    for key in sorted(schema.meta_keys - meta.keys()):
        raise SchemaError(f"meta_info has no {key!r}; it has {sorted(meta)}")


def _check_column(name: str, expected: ColumnSchema, column: Any) -> None:
    is_array = isinstance(column, np.ndarray)
    got = _describe_array(column) if is_array else _describe_column(column)
    for point in ("kind", "dtype"):
        wanted, found = getattr(expected, point), getattr(got, point)
        if wanted is not None and wanted != found:
            raise SchemaError(f"column {name!r}: {point} is {found!r}; expected {wanted!r}")
    if expected.shape is not None and not _fits(got.shape or (), expected.shape):
        raise SchemaError(f"column {name!r}: a row has the shape {got.shape}; expected {expected.shape}")
    if expected.cell is not None:
        _check_cells(name, expected.cell, column)
    _check_values(name, expected, column)


def _fits(shape: tuple[int | None, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(
        want is None or got == want for got, want in zip(shape, expected, strict=True)
    )


def _check_cells(name: str, cell: str, column: Any) -> None:
    for row, value in enumerate(column):
        if type(value).__name__ != cell:
            raise SchemaError(
                f"column {name!r}, row {row}: {short(value)} is a {type(value).__name__}; expected {cell}"
            )


def _check_values(name: str, expected: ColumnSchema, column: Any) -> None:
    if not expected.finite and expected.low is None and expected.high is None:
        return
    values, rows = _values_and_rows(name, column)
    problems = []
    if expected.finite:
        problems.append(("is not finite", ~torch.isfinite(values)))
    if expected.low is not None:
        problems.append((f"is below {expected.low}", values < expected.low))
    if expected.high is not None:
        problems.append((f"is above {expected.high}", values > expected.high))
    found = [
        (int(rows[at]), text, values[at]) for text, wrong in problems for at in wrong.nonzero().flatten()[:1].tolist()
    ]
    if found:
        row, text, value = min(found, key=lambda problem: problem[0])
        raise SchemaError(f"column {name!r}, row {row}: {value.item()} {text}")


def _values_and_rows(name: str, column: Any) -> tuple[Tensor, Tensor]:
    """All values of a column, one after the other, and the row of each."""
    if isinstance(column, np.ndarray) and column.dtype != object:
        return _values_and_rows(name, torch.from_numpy(np.ascontiguousarray(column)))
    if not isinstance(column, Tensor):
        raise SchemaError(f"column {name!r} is no column of numbers; finite, low and high cannot be checked")
    if column.is_nested:
        values, offsets, dim = jagged.parts(column, Shared())
        flat = values.movedim(dim - 1, 0).reshape(values.shape[dim - 1], -1)
        owner = torch.arange(len(offsets) - 1, device=offsets.device).repeat_interleave(offsets.diff())
    else:
        flat = column.reshape(len(column), -1)
        owner = torch.arange(len(column), device=column.device)
    numbers = flat if flat.dtype in COMPUTABLE else flat.to(torch.float64)
    return numbers.flatten(), owner.repeat_interleave(flat.shape[1])
