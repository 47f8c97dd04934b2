"""Rows of a TensorDict, whatever its columns are made of. Letters: `B` rows, `D` pieces."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import dense, indexing, leaves, legacy, merge
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnError, MergeError, NotEqualError, SplitError
from fanfold.dataproto.jagged import Shared
from fanfold.dataproto.tensordicts.values import check
from fanfold.dataproto.text import short


def _rows(what: str, tensordict: Any) -> int:
    check(what, tensordict)
    if len(tensordict.batch_size) != 1:
        raise ColumnError(f"{what}: the batch size is {list(tensordict.batch_size)}; expected one dimension, the rows")
    return int(tensordict.batch_size[0])


def _made(like: TensorDictBase, rows: int, columns: Mapping[str, Column]) -> TensorDict:
    return TensorDict(dict(columns), batch_size=[rows], device=like.device)


def _slice(tensordict: TensorDictBase, start: int, stop: int) -> TensorDict:
    shared = Shared()
    cut = {name: column_rules.slice_rows(column, start, stop, shared) for name, column in tensordict.items()}
    return _made(tensordict, stop - start, cut)


def concat_tensordict(data: Sequence[TensorDictBase], *, merge_rules: Mapping[str, Any] | None = None) -> TensorDict:
    """Put TensorDicts below each other; values of the whole batch must be equal, or follow a rule.

    Args:
        data: at least one, all with the same columns
        merge_rules: by key, as for `DataProto.concat`

    Raises:
        MergeError: no TensorDicts, other columns, dtypes or row shapes, or values that differ without a rule.

    >>> piece = TensorDict({"x": torch.arange(2)}, batch_size=[2])
    >>> concat_tensordict([piece, piece])["x"]
    tensor([0, 1, 0, 1])
    """
    parts = list(data)
    if not parts:
        raise MergeError("concat_tensordict got nothing; expected at least one TensorDict")
    rows = sum(_rows("concat_tensordict", part) for part in parts)
    found = [dict(part.items()) for part in parts]
    values = _whole_values(found, rows, merge_rules or {})
    names = _common_columns(found, values)
    shared = Shared()
    columns = {name: column_rules.cat(name, [part[name] for part in found], shared) for name in names}
    ordered = {name: columns.get(name, values.get(name)) for name in dict.fromkeys([*found[0], *columns, *values])}
    return _made(parts[0], rows, ordered)


def _whole_values(found: list[dict[str, Column]], rows: int, rules: Mapping[str, Any]) -> dict[str, Column]:
    whole = [{name: column.data for name, column in part.items() if leaves.is_shared_value(column)} for part in found]
    by_row = {name for part in found for name, column in part.items() if not leaves.is_shared_value(column)}
    metas = [{name: value for name, value in part.items() if name not in by_row} for part in whole]
    checked = merge.united_rules(rules)
    return {name: NonTensorData(value, batch_size=[rows]) for name, value in merge.merged_meta(metas, checked).items()}


def _common_columns(found: list[dict[str, Column]], values: Mapping[str, Column]) -> list[str]:
    names = [name for name in found[0] if name not in values]
    for position, part in enumerate(found):
        mine = {name for name in part if name not in values}
        if mine != set(names):
            raise MergeError(
                f"TensorDict {position} has the columns {sorted(mine)}; expected {sorted(names)}, as TensorDict 0 has"
            )
    return names


def concat_tensordict_with_none_bsz(data: Sequence[TensorDictBase]) -> TensorDictBase:
    """Return the one TensorDict that several without rows amount to, whose values must be equal.

    Raises:
        MergeError: none was given, one has rows, or values differ.

    >>> one, two = (TensorDict({"step": NonTensorData(3)}, batch_size=[]) for _ in range(2))
    >>> column_value(dict(concat_tensordict_with_none_bsz([one, two]).items())["step"])
    3
    """
    parts = list(data)
    if not parts:
        raise MergeError("concat_tensordict_with_none_bsz got nothing; expected at least one TensorDict")
    for position, part in enumerate(parts):
        check("concat_tensordict_with_none_bsz", part)
        if part.batch_size:
            raise MergeError(f"TensorDict {position} has the batch size {list(part.batch_size)}; expected none")
    merge.merged_meta([{name: column_value(column) for name, column in part.items()} for part in parts], {})
    return parts[0]


def column_value(column: Column) -> Any:
    """Return the Python value of a wrapped column, or the column."""
    return column.data if leaves.is_shared_value(column) else column


def chunk_tensordict(td: TensorDictBase, chunks: int) -> list[TensorDict]:
    """Divide into equal pieces, which are views.

    Raises:
        SplitError: D does not divide B; names both.

    >>> [piece["x"].tolist() for piece in chunk_tensordict(TensorDict({"x": torch.arange(4)}, batch_size=[4]), 2)]
    [[0, 1], [2, 3]]
    """
    rows, count = _rows("chunk_tensordict", td), indexing.at_least("chunks", chunks, 1)
    if rows % count:
        raise SplitError(
            f"{rows} rows cannot be divided into {count} equal chunks; pad_to_divisor makes them divisible"
        )
    size = rows // count
    return [_slice(td, at * size, (at + 1) * size) for at in range(count)]


def index_select_tensor_dict(batch: TensorDictBase | None, indices: Any) -> TensorDict | None:
    """Copy rows by number or by bool mask; None for None.

    Raises:
        RowIndexError: there is no such row.

    >>> index_select_tensor_dict(TensorDict({"x": torch.arange(4)}, batch_size=[4]), [3, 0])["x"]
    tensor([3, 0])
    """
    if batch is None:
        return None
    index, shared = indexing.row_numbers(indices, _rows("index_select_tensor_dict", batch)), Shared()
    taken = {name: column_rules.take(column, index, shared) for name, column in batch.items()}
    return _made(batch, len(index), taken)


def union_tensor_dict(tensor_dict1: TensorDictBase, tensor_dict2: TensorDictBase) -> TensorDictBase:
    """Add the columns of the second TensorDict to the first in place and return the first; all or nothing.

    Raises:
        MergeError: other batch sizes, or a column that both have with different values (NaN equals NaN).

    >>> one, two = TensorDict({"a": torch.zeros(2)}, [2]), TensorDict({"b": torch.ones(2)}, [2])
    >>> sorted(union_tensor_dict(one, two).keys())
    ['a', 'b']
    """
    check("union_tensor_dict", tensor_dict1)
    check("union_tensor_dict", tensor_dict2)
    return legacy.union_tensor_dict(tensor_dict1, tensor_dict2)


def make_iterator(
    tensordict: TensorDictBase,
    mini_batch_size: int,
    epochs: int,
    seed: int | None = None,
    dataloader_kwargs: Mapping[str, Any] | None = None,
) -> Iterator[TensorDictBase]:
    """Return an iterator over mini-batches of equal size; see `DataProto.make_iterator`.

    >>> [part["x"].tolist() for part in make_iterator(TensorDict({"x": torch.arange(4)}, batch_size=[4]), 2, epochs=1)]
    [[0, 1], [2, 3]]
    """
    from fanfold.dataproto.batch import DataProto  # noqa: PLC0415 (the batch's parts module needs this package)

    _rows("make_iterator", tensordict)
    batches = DataProto(tensordict).make_iterator(mini_batch_size, epochs, seed, dataloader_kwargs)
    return (part.batch for part in batches if part.batch is not None)


def assert_tensordict_eq(tensordict1: TensorDictBase, tensordict2: TensorDictBase) -> None:
    """Check that two TensorDicts have the same keys, kinds, dtypes, shapes and values; NaN equals NaN.

    Raises:
        NotEqualError: an AssertionError that names the first key that differs and shows both values.

    >>> assert_tensordict_eq(TensorDict({"x": torch.zeros(2)}, [2]), TensorDict({"x": torch.zeros(2)}, [2]))
    """
    check("assert_tensordict_eq", tensordict1)
    check("assert_tensordict_eq", tensordict2)
    one, other = dict(tensordict1.items()), dict(tensordict2.items())
    if one.keys() != other.keys():
        raise NotEqualError(f"the keys are {sorted(one)} and {sorted(other)}")
    if tensordict1.batch_size != tensordict2.batch_size:
        raise NotEqualError(f"the batch sizes are {list(tensordict1.batch_size)} and {list(tensordict2.batch_size)}")
    for name, column in one.items():
        if not column_rules.equal(column, other[name]):
            raise NotEqualError(f"{name!r} differs: {short(column)} and {short(other[name])}")


def pad_to_divisor(data: TensorDictBase, size_divisor: int) -> tuple[TensorDictBase, int]:
    """Return the TensorDict with rows repeated cyclically until `size_divisor` divides their number, and how many.

    >>> pad_to_divisor(TensorDict({"x": torch.arange(3)}, batch_size=[3]), 2)[0]["x"]
    tensor([0, 1, 2, 0])
    """
    rows, divisor = _rows("pad_to_divisor", data), indexing.at_least("size_divisor", size_divisor, 1)
    amount = -rows % divisor
    if not amount:
        return data, 0
    padded = index_select_tensor_dict(data, torch.arange(rows + amount) % rows)
    assert padded is not None
    return padded, amount


def unpad(data: TensorDictBase, pad_size: int) -> TensorDictBase:
    """Return the TensorDict without its last `pad_size` rows.

    Raises:
        SplitError: fewer rows than that.

    >>> unpad(TensorDict({"x": torch.arange(4)}, batch_size=[4]), 1)["x"]
    tensor([0, 1, 2])
    """
    rows, amount = _rows("unpad", data), indexing.at_least("pad_size", pad_size, 0)
    if amount > rows:
        raise SplitError(f"{amount} padding rows cannot be taken off {rows} rows")
    return _slice(data, 0, rows - amount) if amount else data


def contiguous(data: TensorDictBase) -> TensorDict:
    """Return a TensorDict whose dense tensors are contiguous; the device and everything else stay.

    >>> contiguous(TensorDict({"x": torch.zeros(2, 3).T}, batch_size=[3]))["x"].is_contiguous()
    True
    """
    check("contiguous", data)
    columns = {name: _contiguous(column) for name, column in data.items()}
    return TensorDict(columns, batch_size=data.batch_size, device=data.device)


def _contiguous(column: Column) -> Column:
    if column_rules.is_tree(column):
        return column_rules.map_leaves(column, column_rules.rows_of(column), _contiguous)
    return dense.contiguous(column) if isinstance(column, Tensor) and not column.is_nested else column
