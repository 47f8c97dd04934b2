"""Non-tensor columns: numpy arrays with the rows first, one Python object for each row where the dtype is object.

Letters: `B` rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fanfold.dataproto.errors import ColumnError, ColumnTypeError, MergeError

Array: TypeAlias = NDArray[Any]


def object_column(values: Iterable[object]) -> Array:
    """Make an object array [B] with one object for each row, whatever the objects are.

    >>> object_column([[1, 2], [3, 4]]).shape
    (2,)
    """
    items = list(values)
    return np.fromiter(items, dtype=object, count=len(items))


def plain_column(values: Sequence[object]) -> Array:
    """Make a column of values that lost their array: of one dtype where all are scalars of it, else of objects."""
    first = type(values[0]) if values else object
    if issubclass(first, np.generic) and all(type(value) is first for value in values):
        return np.array(values)
    return object_column(values)


def as_column(name: str, values: object) -> Array:
    """Take an array as it is and turn another sequence into an object column.

    Raises:
        ColumnTypeError: neither an array nor a sequence of rows.
        ColumnError: a 0-d array.
    """
    if isinstance(values, np.ndarray):
        check(name, values)
        return values
    if isinstance(values, str | bytes | Mapping | AbstractSet | Tensor) or not isinstance(values, Iterable):
        raise ColumnTypeError(
            f"non-tensor column {name!r} is a {type(values).__name__}; expected a numpy array or a list with one item "
            "for each row. One value for the whole batch belongs into meta_info."
        )
    return object_column(values)


def check(name: str, array: object) -> None:
    """Refuse what can be no non-tensor column, naming it."""
    if not isinstance(array, np.ndarray):
        raise ColumnTypeError(
            f"non-tensor column {name!r} is a {type(array).__name__}; expected a numpy array. "
            "Make one with fanfold.dataproto.object_column(values)."
        )
    if not array.ndim:
        raise ColumnError(f"non-tensor column {name!r} is a 0-d array; expected one entry for each row. Use meta_info.")


def cat(name: str, parts: list[Array], out: Array | None = None) -> Array:
    """Put the parts of one non-tensor column below each other.

    Raises:
        MergeError: dtypes that only a conversion of values could unite, or row shapes that differ.
    """
    first = parts[0]
    for position, part in enumerate(parts):
        if part.shape[1:] != first.shape[1:] or not _united(part.dtype, first.dtype):
            raise MergeError(
                f"non-tensor column {name!r}: part 0 has {first.dtype}, rows {list(first.shape[1:])}, part {position} "
                f"has {part.dtype}, rows {list(part.shape[1:])}; expected the same in every part. Use object columns."
            )
    return np.concatenate(parts, out=out)


def _united(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    return one.kind == other.kind or object in {one, other}


def repeat(array: Array, times: int, *, interleave: bool) -> Array:
    """Repeat every row: a,a,b,b when interleaved, else a,b,a,b."""
    if interleave:
        return np.repeat(array, times, axis=0)
    return array[np.tile(np.arange(len(array)), times)]


def nbytes(array: Array) -> int:
    """Bytes of an array; for object columns a lower bound, the pointers and what `sys.getsizeof` says of the cells."""
    if array.dtype != object:
        return array.nbytes
    cells = (cell.nbytes if hasattr(cell, "nbytes") else cell.__sizeof__() for cell in array.flat)
    return array.nbytes + int(sum(cells))
