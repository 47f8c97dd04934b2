"""What an installed dispatcher is told about batches of this package, through the entry point `fanfold.batch_types`.

The dispatcher hands over its own `register_batch_type`; nothing of it is imported here.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import jagged, parts
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.buffers import memory_of
from fanfold.dataproto.columns import Column
from fanfold.dataproto.jagged import Shared
from fanfold.dataproto.parts import Columns, Part, Share
from fanfold.dataproto.remote import DataProtoFuture, PartStore
from fanfold.dataproto.staged import RemoteBatch


def register_types(register_batch_type: Callable[..., Any]) -> None:
    """Register `DataProto`, `DataProtoFuture` and `RemoteBatch`."""
    register_batch_type(
        DataProto,
        take=_take,
        select=parts.select_columns,
        columns=parts.column_names,
        column=_column,
        nbytes=_nbytes,
        lazy=_lazy,
        stage=RemoteBatch.stage,
        freeze=freeze,
    )
    register_batch_type(
        DataProtoFuture,
        take=DataProtoFuture.select_idxs,
        columns=DataProtoFuture.columns,
        select=_narrowed,
        column=lambda future, name: future.select([name]).get()[name],
        lazy=_lazy,
        part=_part,
    )
    register_batch_type(
        RemoteBatch,
        rows=RemoteBatch.slice,
        concat=_concat_remote,
        columns=lambda remote: remote.columns,
        select=RemoteBatch.select,
        column=lambda remote, name: remote.materialize([name])[name],
        nbytes=lambda remote: remote.nbytes,
        lazy=_lazy,
    )


def _take(batch: DataProto, indices: Sequence[int]) -> DataProto:
    return batch.select_idxs(list(indices))


def _column(batch: DataProto, name: str) -> Any:
    return batch[name]


def _nbytes(batch: DataProto) -> int:
    return batch.nbytes


def _lazy(store: PartStore, found: Iterable[Part | tuple[Any, Any]], call: Any = None) -> DataProtoFuture:
    return DataProtoFuture.of(store, found, getattr(store, "call", None) if call is None else call)


def _concat_remote(batches: Sequence[RemoteBatch | DataProtoFuture]) -> DataProtoFuture:
    return DataProtoFuture.concat(batches)


def _part(future: DataProtoFuture, at: int, count: int) -> DataProtoFuture:
    return future._cut(Share(at, count))


def _narrowed(future: DataProtoFuture, names: Sequence[str]) -> DataProtoFuture:
    return future._made(Columns(future._node, tuple(names), lenient=True), future)


def freeze(batch: DataProto) -> Callable[[], str | None]:
    """Start watching a batch; the function that comes back says what was written since, or None.

    Tensors and numeric arrays are watched by content. A change of a Python object in a cell is not seen.
    """
    before = _marks(batch)

    def written() -> str | None:
        after = _marks(batch)
        if before.keys() != after.keys():
            return f"columns {sorted(before.keys() ^ after.keys())} were added or removed"
        changed = [name for name, mark in before.items() if after[name] != mark]
        return f"columns {changed} were written" if changed else None

    return written


def _marks(batch: DataProto) -> dict[str, Any]:
    marks = {name: _mark(column) for name, column in batch._columns().items()}
    for name, array in batch.non_tensor_batch.items():
        marks[name] = [id(cell) for cell in array.flat] if array.dtype == object else zlib.crc32(array.tobytes())
    return marks


def _mark(column: Column) -> Any:
    if isinstance(column, Tensor):
        if not column.is_nested:
            return zlib.crc32(memory_of(column).reshape(-1).data) if column.numel() else 0
        values, offsets, _ = jagged.parts(column, Shared())
        return _mark(values), _mark(offsets)
    if column_rules.is_tree(column):
        return {name: _mark(leaf) for name, leaf in column.items()}
    return id(column)
