"""Dividing, repeating and putting together again. Letters: `B` rows, `D` pieces, `N` repetitions."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import dense, indexing, join, objects
from fanfold.dataproto.columns import Column
from fanfold.dataproto.config import DataProtoConfig
from fanfold.dataproto.errors import ColumnTypeError, MissingKeyError, SplitError
from fanfold.dataproto.jagged import Shared
from fanfold.dataproto.merge import Rule
from fanfold.dataproto.objects import Array
from fanfold.dataproto.rows import Indexing, targets_of
from fanfold.dataproto.state import BatchState
from fanfold.dataproto.table import Table

Uneven = Literal["split", "pad", "error"]
S = TypeVar("S", bound=BatchState)


class Shaping(Indexing):
    """Operations that change how many rows there are, or how many batches."""

    __slots__ = ()

    def is_padding_enabled(self) -> bool:
        """Say whether `chunk` may divide this batch unevenly without being asked.

        >>> DataProto.from_dict({"x": torch.zeros(2)}, auto_padding=True).is_padding_enabled()
        True
        """
        marked = bool(self.meta_info.get(DataProtoConfig.auto_padding_key, False))
        return self._auto_padding or marked or DataProtoConfig.auto_padding

    def chunk(self, chunks: int, *, uneven: Uneven | None = None) -> list[Self]:
        """Divide into `chunks` consecutive pieces, which are views of this batch with a copy of `meta_info` each.

        Args:
            chunks: D, the number of pieces; always as many come back
            uneven: when D does not divide B: "error" refuses; "split" makes pieces whose sizes differ by at most one,
                the larger ones first, some empty if B < D; "pad" repeats rows cyclically at the end of the last pieces
                (-B % D of them, on a copy). None is "split" where padding is enabled, else "error".

        Raises:
            SplitError: D does not divide B and nothing was said about it; names both numbers and the ways out.

        >>> batch = DataProto.from_dict({"x": torch.arange(5)})
        >>> [piece["x"].tolist() for piece in batch.chunk(2, uneven="split")]
        [[0, 1, 2], [3, 4]]
        >>> [piece["x"].tolist() for piece in batch.chunk(2, uneven="pad")]
        [[0, 1, 2], [3, 4, 0]]
        """
        pieces, rows = indexing.at_least("chunks", chunks, 1), self._rows()
        mode = uneven or ("split" if self.is_padding_enabled() else "error")
        if mode not in {"split", "pad", "error"}:
            raise ColumnTypeError(f"uneven is {uneven!r}; expected 'split', 'pad' or 'error'")
        if rows % pieces and mode == "error":
            raise SplitError(
                f"{rows} rows cannot be divided into {pieces} equal chunks; use chunk({pieces}, uneven='split') for "
                f"sizes that differ by one, uneven='pad' or pad_dataproto_to_divisor(batch, {pieces}), or split(size)"
            )
        if rows % pieces and mode == "pad":
            return self._padded(-rows % pieces)._cut(even_sizes(rows + -rows % pieces, pieces))
        return self._cut(even_sizes(rows, pieces))

    def split(self, split_size: int) -> list[Self]:
        """Divide into consecutive pieces of `split_size` rows, the last one smaller; no rows give no pieces.

        Raises:
            SplitError: the size is below 1.

        >>> [len(piece) for piece in DataProto.from_dict({"x": torch.arange(5)}).split(2)]
        [2, 2, 1]
        """
        size, rows = indexing.at_least("split_size", split_size, 1), self._rows()
        full, rest = divmod(rows, size)
        return self._cut([size] * full + [rest] * bool(rest))

    def _cut(self, sizes: list[int]) -> list[Self]:
        found, ends, meta_of = self._tensors(), [0, *itertools.accumulate(sizes)], self._meta_for_view()
        tables = [None] * len(sizes) if found is None else _cut_table(found, sizes, ends)
        arrays = _cut_arrays(self.non_tensor_batch, ends)
        return [self._derive_piece(table, part, meta_of) for table, part in zip(tables, arrays, strict=True)]

    def _padded(self, amount: int) -> Self:
        """Return a copy with `amount` rows more, taken cyclically from the start."""
        rows = self._rows()
        if not amount or not rows:
            return self
        return self.select_idxs(torch.arange(rows + amount) % rows)

    @staticmethod
    def concat(data: Sequence[S], *, merge: Mapping[str, Rule] | None = None, out: S | None = None) -> S:
        """Put batches below each other in one new batch of the first one's class.

        Metadata: keys of all parts stay; equal values (NaN-safe, by content) stay as they are; `metrics` become one
            flat
        list for each name; keys named timing... are averaged (max for names that end in max, min for min); other values
        that differ need a rule.

        Args:
            data: the batches, at least one
            merge: rules by key of `meta_info`: "same", "first", "last", "mean", "sum", "min", "max", "list", or a
                function of the list of values; for this time, before the rules that the batches carry
            out: a batch with the same columns and enough rows, whose memory is used for the dense columns

        Raises:
            MergeError: no batches, other columns, dtypes or row shapes, or metadata that contradicts itself.

        >>> pieces = DataProto.from_dict({"x": torch.arange(4)}, meta_info={"lr": 0.1}).chunk(2)
        >>> DataProto.concat(pieces)["x"]
        tensor([0, 1, 2, 3])
        """
        return join.concat(data, merge, out)

    def repeat(self, repeat_times: int = 2, interleave: bool = True, *, out: Self | None = None) -> Self:
        """Return a copy with every row `repeat_times` times.

        Args:
            repeat_times: N, at least 0
            interleave: a,a,b,b when true, else a,b,a,b
            out: a batch with the same columns and at least B * N rows, whose memory is used for the dense columns

        >>> DataProto.from_dict({"x": torch.arange(2)}).repeat(2)["x"]
        tensor([0, 0, 1, 1])
        """
        times, rows = indexing.at_least("repeat_times", repeat_times, 0), self._rows()
        arrays = {
            name: objects.repeat(array, times, interleave=interleave) for name, array in self.non_tensor_batch.items()
        }
        found, shared = self._tensors(), Shared()
        if found is None:
            return self._derive(None, arrays, self._meta_for_copy())
        targets = targets_of(out, found, rows * times)
        made = {
            name: column_rules.repeat(column, times, shared, interleave=interleave, out=targets.get(name))
            for name, column in found.columns.items()
        }
        return self._derive(Table(made, rows * times, found.device), arrays, self._meta_for_copy())

    def sample_level_repeat(self, repeat_times: Any) -> Self:
        """Return a copy in which row i stands `repeat_times[i]` times in a row.

        Args:
            repeat_times: [B] integers of at least 0: a list, tuple, 1-D array or tensor

        Raises:
            SplitError: not one number for each row, or a negative one.

        >>> DataProto.from_dict({"x": torch.arange(3)}).sample_level_repeat([2, 0, 1])["x"]
        tensor([0, 0, 2])
        """
        rows = self._rows()
        counts = _counts(repeat_times, rows)
        return self.select_idxs(torch.arange(rows).repeat_interleave(counts))

    def reorder(self, indices: Any) -> None:
        """Put the rows in another order in place.

        Args:
            indices: [B] row numbers, each once: the new row i is the old row `indices[i]`

        Raises:
            SplitError: not a permutation of the rows; use `select_idxs` to drop or repeat rows.

        >>> batch = DataProto.from_dict({"x": torch.arange(3)})
        >>> batch.reorder([2, 0, 1])
        >>> batch["x"]
        tensor([2, 0, 1])
        """
        rows = self._rows()
        order = indexing.row_numbers(indices, rows)
        if len(order) != rows or not torch.equal(order.sort().values, torch.arange(rows)):
            raise SplitError(
                f"reorder got {len(order)} numbers for {rows} rows; expected every row number exactly once. "
                "Use select_idxs to drop or repeat rows."
            )
        made = self.select_idxs(order)
        self._replace(made._table, made.non_tensor_batch)

    def unfold_column_chunks(self, n_split: int, split_keys: Sequence[str] | None = None) -> Self:
        """Return a copy in which each row became `n_split` rows, by pieces of some columns.

        Args:
            n_split: N
            split_keys: dense columns [B, N * C, ...] that become [B * N, C, ...]; all other columns repeat their rows

        Raises:
            MissingKeyError: a key is no column.
            SplitError: a column has no second dimension, or one that N does not divide.

        >>> batch = DataProto.from_dict({"x": torch.arange(4).view(2, 2), "y": torch.arange(2)})
        >>> made = batch.unfold_column_chunks(2, ["x"])
        >>> made["x"].tolist(), made["y"].tolist()
        ([[0], [1], [2], [3]], [0, 0, 1, 1])
        """
        times, keys = indexing.at_least("n_split", n_split, 1), _keys(split_keys)
        known = {**self._columns(), **self.non_tensor_batch}
        for key in keys:
            if key not in known:
                raise MissingKeyError(f"split_keys: there is no column {key!r}; there are {sorted(known)}")
            _check_divisible(key, known[key], times)
        made = self.repeat(times)
        columns = {} if made._table is None else dict(made._table.columns)
        for key in keys:
            target = columns if key in columns else made.non_tensor_batch
            target[key] = _in_pieces(known[key], times)
        if made._table is not None:
            made._table = Table(columns, made._table.rows, made._table.device)
        return made

    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Add `padding_size` copies of one row at the end, in place.

        Args:
            padding_size: at least 0
            padding_candidate: "first" repeats row 0, "last" or "" the last row

        Raises:
            SplitError: there is no row to repeat, or a negative size.
            ColumnTypeError: another candidate.

        >>> batch = DataProto.from_dict({"x": torch.arange(2)})
        >>> batch.padding(2)
        >>> batch["x"]
        tensor([0, 1, 1, 1])
        """
        amount, rows = indexing.at_least("padding_size", padding_size, 0), self._rows()
        if padding_candidate not in {"", "first", "last"}:
            raise ColumnTypeError(f"padding_candidate is {padding_candidate!r}; expected 'first', 'last' or ''")
        if not rows and amount:
            raise SplitError(f"padding by {amount} rows: the batch has no row that could be repeated")
        if not amount:
            return
        row = 0 if padding_candidate == "first" else rows - 1
        made = self.select_idxs(torch.cat([torch.arange(rows), torch.full((amount,), row)]))
        self._replace(made._table, made.non_tensor_batch)


def even_sizes(rows: int, pieces: int) -> list[int]:
    """Return sizes that differ by at most one, the larger ones first."""
    size, larger = divmod(rows, pieces)
    return [size + 1] * larger + [size] * (pieces - larger)


def _cut_table(found: Table, sizes: list[int], ends: list[int]) -> list[Table | None]:
    shared = Shared()
    names = tuple(found.columns)
    cut = [_cut_column(column, sizes, ends, shared) for column in found.columns.values()]
    pieces = zip(*cut, strict=True) if cut else itertools.repeat((), len(sizes))
    named = map(dict, map(zip, itertools.repeat(names), pieces))  # a comprehension takes half as long again
    device, mapped = found.device, found.mapped
    return [Table(columns, size, device, mapped) for columns, size in zip(named, sizes, strict=True)]


def _cut_arrays(arrays: dict[str, Array], ends: list[int]) -> list[dict[str, Array]]:
    items = list(arrays.items())
    return [{name: array[start:stop] for name, array in items} for start, stop in itertools.pairwise(ends)]


def _cut_column(column: Column, sizes: list[int], ends: list[int], shared: Shared) -> Sequence[Column]:
    if isinstance(column, Tensor) and not column.is_nested:
        return column.split_with_sizes(sizes)
    return [column_rules.slice_rows(column, start, stop, shared) for start, stop in itertools.pairwise(ends)]


def _counts(repeat_times: Any, rows: int) -> Tensor:
    if not isinstance(repeat_times, list | tuple | np.ndarray | Tensor):
        raise ColumnTypeError(
            f"repeat_times is a {type(repeat_times).__name__}; expected a list, tuple, array or tensor"
        )
    try:
        counts = repeat_times.detach().cpu() if isinstance(repeat_times, Tensor) else torch.as_tensor(repeat_times)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SplitError(f"repeat_times: expected {rows} integers, one for each row ({error})") from None
    if not counts.numel():
        counts = counts.long()
    if counts.dim() != 1 or len(counts) != rows or counts.dtype.is_floating_point or counts.dtype == torch.bool:
        raise SplitError(
            f"repeat_times is {counts.dtype} {list(counts.shape)}; expected {rows} integers, one for each row"
        )
    if rows and int(counts.min()) < 0:
        raise SplitError(f"repeat_times has the negative entry {int(counts.min())}; expected at least 0")
    return counts.long()


def _keys(keys: Sequence[str] | None) -> list[str]:
    return [] if keys is None else [keys] if isinstance(keys, str) else list(keys)


def _check_divisible(key: str, column: Any, times: int) -> None:
    dense_tensor = isinstance(column, np.ndarray) or (isinstance(column, Tensor) and not column.is_nested)
    if not dense_tensor or column.ndim < 2 or column.shape[1] % times:  # noqa: PLR2004 (rows and what is divided)
        shape = list(column.shape)
        raise SplitError(
            f"column {key!r} has the shape {shape}; expected a dense second dimension divisible by {times}"
        )


def _in_pieces(column: Any, times: int) -> Any:
    rows, width, *rest = column.shape
    shape = (rows * times, width // times, *rest)
    if isinstance(column, Tensor):
        return dense.contiguous(dense.clone(column)).view(shape)
    return column.copy().reshape(shape)
