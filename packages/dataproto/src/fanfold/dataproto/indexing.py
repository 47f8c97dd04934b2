"""From what a user writes between brackets to one form: a range of rows, or row numbers as int64.

Letters: `B` rows of the batch, `N` rows that are asked for.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fanfold.dataproto.errors import ColumnTypeError, RowIndexError, SplitError

_WAYS = "expected an int, a slice, a range, a list, array or tensor of row numbers or of one bool for each row"
_LARGEST = 2**63 - 1  # of int64


def row_number(number: int, rows: int) -> int:
    """Return a row number counted from the start.

    Raises:
        RowIndexError: the batch has no such row.
    """
    found = number + rows if number < 0 else number
    if not 0 <= found < rows:
        raise _no_such_row(number, rows)
    return found


def _no_such_row(number: int, rows: int) -> RowIndexError:
    return RowIndexError(f"row {number} is out of range; the batch has {rows} rows")


def row_numbers(index: object, rows: int) -> Tensor:
    """Return row numbers [N], int64, each from 0 to B - 1; a bool mask [B] selects where it is true.

    Raises:
        ColumnTypeError: not row numbers.
        RowIndexError: a row that the batch does not have, or a mask of another length.
    """
    numbers = _as_tensor(index, rows)
    if numbers.dim() != 1:
        raise RowIndexError(f"row numbers have the shape {list(numbers.shape)}; expected one dimension")
    if numbers.dtype == torch.bool:
        return _from_mask(numbers, rows)
    return _in_range(numbers.long(), rows)


def _as_tensor(index: Any, rows: int) -> Tensor:
    if isinstance(index, Tensor):
        numbers = index.detach().cpu()
    elif isinstance(index, np.ndarray):
        numbers = _from_array(index, rows)
    elif isinstance(index, Sequence) and not isinstance(index, str | bytes):
        numbers = _from_sequence(index, rows)
    else:
        raise ColumnTypeError(f"a batch was indexed with a {type(index).__name__}; {_WAYS}")
    if numbers.dtype.is_floating_point or numbers.dtype.is_complex:
        raise ColumnTypeError(f"row numbers are {numbers.dtype}; {_WAYS}")
    if numbers.dtype == torch.uint64:
        return _from_array(numbers.numpy(), rows)
    return numbers


def _from_array(index: np.ndarray[Any, Any], rows: int) -> Tensor:
    if index.dtype == object:
        return _from_sequence(index.tolist(), rows)
    if index.dtype.kind not in "iub":
        raise ColumnTypeError(f"row numbers are an array of {index.dtype}; {_WAYS}")
    if index.dtype == np.uint64 and index.size and int(index.max()) > _LARGEST:
        raise _no_such_row(int(index.max()), rows)  # as int64 it would count from the end
    return torch.from_numpy(index.astype(bool if index.dtype == bool else np.int64))


def _from_sequence(index: Sequence[Any], rows: int) -> Tensor:
    if isinstance(index, range):
        return torch.arange(index.start, index.stop, index.step) if len(index) else torch.zeros(0, dtype=torch.int64)
    flags = sum(isinstance(item, bool | np.bool_) for item in index)
    if flags and flags != len(index):
        raise ColumnTypeError(f"row numbers mix {flags} bools with {len(index) - flags} other values; {_WAYS}")
    try:
        items = [bool(item) if flags else operator.index(item) for item in index]
    except TypeError as error:
        raise ColumnTypeError(f"row numbers are not all integers ({error}); {_WAYS}") from None
    if items and not flags and (max(items) > _LARGEST or min(items) < -_LARGEST):
        raise _no_such_row(max(items, key=abs), rows)
    return torch.tensor(items, dtype=torch.bool if flags else torch.int64)


def _from_mask(mask: Tensor, rows: int) -> Tensor:
    if len(mask) != rows:
        raise RowIndexError(f"the mask has {len(mask)} entries; expected {rows}, one for each row")
    return mask.nonzero().flatten()


def _in_range(numbers: Tensor, rows: int) -> Tensor:
    if not len(numbers):
        return numbers
    low, high = (int(end) for end in torch.aminmax(numbers))
    if low < -rows or high >= rows:
        wrong = low if low < -rows else high
        raise _no_such_row(wrong, rows)
    return torch.where(numbers < 0, numbers + rows, numbers) if low < 0 else numbers


def at_least(name: str, value: object, least: int) -> int:
    """Return an integer argument that must not be below `least`.

    Raises:
        ColumnTypeError: no integer.
        SplitError: too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ColumnTypeError(f"{name} is {value!r}; expected an int of at least {least}")
    number = operator.index(value)
    if number < least:
        raise SplitError(f"{name} is {number}; expected at least {least}")
    return number
