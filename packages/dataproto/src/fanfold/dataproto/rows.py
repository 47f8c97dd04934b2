"""Which rows: indexing, slices, iteration. Letters: `B` rows, `N` rows that are asked for."""

from collections.abc import Iterator
from typing import Any, Self, overload

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import indexing
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnError, ColumnTypeError, MissingKeyError
from fanfold.dataproto.item import DataProtoItem
from fanfold.dataproto.jagged import Shared
from fanfold.dataproto.objects import Array
from fanfold.dataproto.state import BatchState
from fanfold.dataproto.table import Table


class Indexing(BatchState):
    """Everything between brackets."""

    __slots__ = ()

    def __len__(self) -> int:
        return self._row_count()

    def __iter__(self) -> Iterator[DataProtoItem]:
        for row in range(self._rows()):
            yield self._item(row)

    @overload
    def __getitem__(self, item: int | np.integer[Any]) -> DataProtoItem: ...

    @overload
    def __getitem__(self, item: str) -> Any: ...

    @overload
    def __getitem__(self, item: slice | range | list[Any] | Array | Tensor) -> Self: ...

    def __getitem__(self, item: Any) -> Any:
        """Return a row, some rows, or a column.

        Args:
            item: an int (a `DataProtoItem`); a slice or range (a view); a list, array or tensor of row numbers or of
                one bool for each row (a copy); a column name (the column itself, which is not copied)

        Raises:
            RowIndexError: there is no such row, or a mask has another length.
            MissingKeyError: there is no such column.
            ColumnTypeError: anything else.

        >>> batch = DataProto.from_dict({"x": torch.arange(4)})
        >>> batch[1].batch["x"], batch[1:3]["x"], batch[[3, 0]]["x"], batch[np.array([True, False, False, True])]["x"]
        (tensor(1), tensor([1, 2]), tensor([3, 0]), tensor([0, 3]))
        """
        if isinstance(item, slice):
            return self.slice(item.start, item.stop, item.step)
        if isinstance(item, str):
            return self._column(item)
        if isinstance(item, int | np.integer) and not isinstance(item, bool):
            return self._item(indexing.row_number(int(item), self._rows()))
        if isinstance(item, list | np.ndarray | Tensor | range):
            return self._item_or_rows(item)
        raise ColumnTypeError(
            f"a batch was indexed with a {type(item).__name__}; expected int, slice, list, array, tensor, "
            "range, a bool mask or a column name"
        )

    def _item_or_rows(self, item: Any) -> Any:
        if isinstance(item, np.ndarray | Tensor) and not item.ndim:
            number = item.item()
            if isinstance(number, bool) or not isinstance(number, int):
                raise ColumnTypeError(f"a batch was indexed with a 0-d {number!r}; expected an integer")
            return self._item(indexing.row_number(number, self._rows()))
        return self.select_idxs(item)

    def _column(self, name: str) -> Any:
        columns = self._columns()
        if name in columns:
            return columns[name]
        if name in self.non_tensor_batch:
            return self.non_tensor_batch[name]
        raise MissingKeyError(
            f"there is no column {name!r}; the batch has {sorted(columns)} and the non-tensor columns "
            f"{sorted(self.non_tensor_batch)}"
        )

    def _item(self, row: int) -> DataProtoItem:
        found = self._tensors()
        tensors = None if found is None else _row_of(found, row)
        arrays = {name: array[row] for name, array in self.non_tensor_batch.items()}
        return DataProtoItem(tensors, arrays, self._meta_for_view())

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Return rows `start` to `end`, as views: writing into their tensors writes into this batch's.

        Negative numbers count from the end, as in lists; `meta_info` is copied. With a step other than 1, jagged
        columns are copied.

        Raises:
            ColumnTypeError: a number is no integer, or the step is 0.

        >>> DataProto.from_dict({"x": torch.arange(5)}).slice(1, 4)["x"]
        tensor([1, 2, 3])
        """
        rows = self._rows()
        try:
            first, last, stride = slice(start, end, step).indices(rows)
        except (TypeError, ValueError) as error:
            raise ColumnTypeError(f"slice({start!r}, {end!r}, {step!r}): {error}") from None
        if stride != 1:
            return self._strided(range(first, last, stride))
        return self._range(first, max(first, last))

    def _range(self, first: int, last: int) -> Self:
        found = self._tensors()
        arrays = {name: array[first:last] for name, array in self.non_tensor_batch.items()}
        return self._derive(None if found is None else found.slice_rows(first, last), arrays, self._meta_for_view())

    def _strided(self, numbers: range) -> Self:
        index, shared = indexing.row_numbers(numbers, self._rows()), Shared()

        def pick(column: Column) -> Column:
            if isinstance(column, Tensor) and not column.is_nested and numbers.step > 0:
                return column[numbers.start : numbers.stop : numbers.step]
            return column_rules.take(column, index, shared)

        found = self._tensors()
        arrays = {name: array[index.numpy()] for name, array in self.non_tensor_batch.items()}
        return self._derive(None if found is None else found.views(len(index), pick), arrays, self._meta_for_view())

    def select_idxs(self, idxs: Any, *, out: Self | None = None) -> Self:
        """Return a copy of the rows `idxs`, in that order.

        Args:
            idxs: [N] row numbers or [B] bools: a list, array, tensor or range
            out: a batch with the same columns and at least N rows, whose memory is used for the dense columns

        Raises:
            RowIndexError: there is no such row, or a mask has another length.

        >>> DataProto.from_dict({"x": torch.arange(4)}).select_idxs([2, -1])["x"]
        tensor([2, 3])
        """
        index = indexing.row_numbers(idxs, self._rows())
        found, shared = self._tensors(), Shared()
        arrays = {name: array[index.numpy()] for name, array in self.non_tensor_batch.items()}
        if found is None:
            return self._derive(None, arrays, self._meta_for_copy())
        targets = targets_of(out, found, len(index))
        taken = {
            name: column_rules.take(column, index, shared, targets.get(name)) for name, column in found.columns.items()
        }
        return self._derive(Table(taken, len(index), found.device), arrays, self._meta_for_copy())


def _row_of(found: Table, row: int) -> TensorDict:
    one = found.slice_rows(row, row + 1).writable()
    leaves = {name: _first(column) for name, column in one.columns.items()}
    return TensorDict(leaves, batch_size=[], device=found.device)


def _first(column: Column) -> Column:
    if isinstance(column, Tensor) and column.is_nested:
        return column.unbind()[0]
    return column[0]


def targets_of(out: BatchState | None, found: Table, rows: int) -> dict[str, Tensor]:
    """Return the first `rows` rows of the dense columns of `out`, having checked that they fit.

    Raises:
        ColumnError: a column is missing, too short, or has another dtype or row shape.
    """
    if out is None:
        return {}
    columns = from_writable(out)
    targets = {}
    for name, column in found.columns.items():
        if isinstance(column, Tensor) and not column.is_nested:
            targets[name] = _target(name, columns.get(name), column, rows)
    return targets


def from_writable(out: BatchState) -> dict[str, Column]:
    """Return the columns of a batch that may be written."""
    batch = out.batch
    return {} if batch is None else dict(batch.items())


def _target(name: str, target: Any, like: Tensor, rows: int) -> Tensor:
    fits = isinstance(target, Tensor) and not target.is_nested
    fits = fits and target.dtype == like.dtype and target.shape[1:] == like.shape[1:] and target.device == like.device
    if not fits or len(target) < rows:
        got = f"{target.dtype} {list(target.shape)}" if isinstance(target, Tensor) and not target.is_nested else "none"
        raise ColumnError(
            f"out: column {name!r} is {got}; expected {like.dtype} with at least {rows} rows of {list(like.shape[1:])} "
            f"on {like.device}"
        )
    found: Tensor = target[:rows]
    return found
