"""How a batch is made of something else, and a TensorDict of a batch. Letters: `B` rows."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import leaves as leaves_of
from fanfold.dataproto import objects
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnError, ColumnTypeError, MergeError
from fanfold.dataproto.meta import copy_meta
from fanfold.dataproto.state import BatchState, checked_mapping, refuse_two_kinds
from fanfold.dataproto.table import Table, from_tensordict


class Constructing(BatchState):
    """The constructors beside `DataProto(...)` itself."""

    __slots__ = ()

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, Tensor | TensorDictBase] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """Make a batch of dictionaries; none of them is changed or kept.

        Args:
            tensors: name: [B, ...] tensors (dense or jagged) or TensorDicts
            non_tensors: name: [B, ...] numpy arrays, or lists with one object for each row
            meta_info: values of the whole batch
            num_batch_dims: 1, the rows
            auto_padding: whether `chunk` may divide this batch unevenly

        Raises:
            ColumnError: columns with different numbers of rows (names two), 0-d tensors.
            ColumnTypeError: a value of the wrong type.

        >>> batch = DataProto.from_dict({"ids": torch.arange(6).view(2, 3)}, {"prompt": ["a", "b"]}, {"step": 1})
        >>> len(batch), batch.non_tensor_batch["prompt"].dtype
        (2, dtype('O'))
        """
        if num_batch_dims != 1:
            raise ColumnError(
                f"num_batch_dims is {num_batch_dims}; expected 1, the rows. See fold_batch_dim for groups."
            )
        given = checked_mapping("non_tensors", non_tensors)
        arrays = {name: objects.as_column(name, values) for name, values in given.items()}
        made = cls._made(_table_of(checked_mapping("tensors", tensors)), arrays, meta_info)
        made._auto_padding = bool(auto_padding)
        return made

    @classmethod
    def _made(cls, tensors: Table | None, arrays: dict[str, Any], meta: Mapping[str, Any] | None) -> Self:
        made = cls._of_parts(tensors, arrays, copy_meta(dict(checked_mapping("meta_info", meta))))
        refuse_two_kinds(made._columns(), arrays)
        made._rows()
        return made

    @classmethod
    def from_single_dict(
        cls, data: Mapping[str, Any], meta_info: Mapping[str, Any] | None = None, auto_padding: bool = False
    ) -> Self:
        """Make a batch of one dictionary: tensors and TensorDicts to one part, numpy arrays to the other.

        Raises:
            ColumnTypeError: a value is neither.
            ColumnError: columns with different numbers of rows.

        >>> batch = DataProto.from_single_dict({"x": torch.zeros(2), "s": np.array(["a", "b"], dtype=object)})
        >>> sorted(batch.batch.keys()), sorted(batch.non_tensor_batch)
        (['x'], ['s'])
        """
        checked_mapping("data", data)
        tensors = {name: value for name, value in data.items() if column_rules.is_column(value)}
        arrays = {name: value for name, value in data.items() if isinstance(value, np.ndarray)}
        for name, value in data.items():
            if name not in tensors and name not in arrays:
                raise ColumnTypeError(
                    f"{name!r} is a {type(value).__name__}; expected a tensor, a TensorDict or a numpy array. "
                    "Use from_dict for lists, meta_info for values of the whole batch."
                )
        return cls.from_dict(tensors, arrays, meta_info, auto_padding=auto_padding)

    @classmethod
    def from_tensordict(
        cls, tensor_dict: TensorDictBase, meta_info: Mapping[str, Any] | None = None, num_batch_dims: int = 1
    ) -> Self:
        """Make a batch of a TensorDict: per-row objects become object columns, shared values become `meta_info`.

        The rows are the first batch dimension, or what the columns agree on where the batch size is empty. Tensors are
        not copied.

        Raises:
            ColumnError: columns without a common number of rows, or metadata named like a key of `meta_info`.
            ColumnTypeError: not a TensorDict.

        >>> plain = DataProto.from_dict({"x": torch.arange(2)}, {"s": ["a", "b"]}, {"t": 0.7}).to_tensordict()
        >>> again = DataProto.from_tensordict(plain)
        >>> list(again.non_tensor_batch["s"]), again.meta_info
        (['a', 'b'], {'t': 0.7})
        """
        if not isinstance(tensor_dict, TensorDictBase):
            raise ColumnTypeError(f"got a {type(tensor_dict).__name__}; expected a TensorDict. See from_dict.")
        if num_batch_dims != 1:
            raise ColumnError(f"num_batch_dims is {num_batch_dims}; expected 1, the rows")
        tensors, arrays, values = _sorted_by_part(tensor_dict)
        meta = dict(checked_mapping("meta_info", meta_info))
        for name in values.keys() & meta.keys():
            raise ColumnError(f"{name!r} is in meta_info and in the TensorDict; expected it in one of them")
        rows = tensor_dict.batch_size[0] if tensor_dict.batch_size else None
        found = _table_of(tensors, rows, tensor_dict.device)
        if found is None and not arrays and rows is not None:
            found = Table({}, rows, tensor_dict.device)
        return cls._made(found, arrays, {**values, **meta})

    @classmethod
    def from_parts_of(cls, other: Any) -> Self:
        """Make a batch of any object with `batch`, `non_tensor_batch` and `meta_info`, sharing its tensors.

        So a batch of another library can be used here, and the other way round with that library's constructor.

        Raises:
            ColumnTypeError: one of the three attributes is missing.

        >>> len(DataProto.from_parts_of(DataProto.from_dict({"x": torch.zeros(3)})))
        3
        """
        missing = [name for name in ("batch", "non_tensor_batch", "meta_info") if not hasattr(other, name)]
        if missing:
            raise ColumnTypeError(
                f"a {type(other).__name__} has no {', '.join(missing)}; expected batch, non_tensor_batch and meta_info"
            )
        tensors = None if other.batch is None else from_tensordict(other.batch)
        given = checked_mapping("non_tensor_batch", other.non_tensor_batch)
        arrays = {name: objects.as_column(name, array) for name, array in given.items()}
        return cls._made(tensors, arrays, other.meta_info)

    def to_tensordict(self) -> TensorDict:
        """Make one TensorDict of all parts: non-tensor columns as stacks of rows, `meta_info` as shared values.

        Tensors are shared with this batch. The result has the batch size [B]. `from_tensordict` gives the batch back; a
        stack does not know dtypes, so an array with more than one dimension comes back as a column of arrays.

        Raises:
            MergeError: one name is used in two parts, or a key of `meta_info` is no name.

        >>> DataProto.from_dict({"x": torch.arange(2)}, {"s": ["a", "b"]}).to_tensordict().batch_size
        torch.Size([2])
        """
        rows = self._rows()
        self._refuse_clashes()
        found = self._tensors()
        leaves: dict[str, Column] = {} if found is None else dict(found.writable().columns)
        for name, array in self.non_tensor_batch.items():
            leaves[name] = _stack_of(array)
        for key, value in copy_meta(self.meta_info).items():
            leaves[key] = NonTensorData(value, batch_size=[rows])
        return TensorDict(leaves, batch_size=[rows], device=None if found is None else found.device)

    def _refuse_clashes(self) -> None:
        seen: dict[str, str] = {}
        parts = {"batch": self._columns(), "non_tensor_batch": self.non_tensor_batch, "meta_info": self.meta_info}
        for part, names in parts.items():
            for name in names:
                if type(name) is not str:
                    raise MergeError(f"meta_info has the key {name!r}; a TensorDict has names (str) only")
                if name in seen:
                    raise MergeError(
                        f"{name!r} is in {seen[name]} and in {part}; a TensorDict holds a name once. Rename."
                    )
                seen[name] = part


def _table_of(tensors: Mapping[str, Column], rows: int | None = None, device: Any = None) -> Table | None:
    if not tensors:
        return None
    first = None
    for name, column in tensors.items():
        column_rules.check(name, column)
        found = _leading(name, column)
        if rows is not None and found != rows:
            other = "the batch size" if first is None else f"column {first!r}"
            raise ColumnError(f"column {name!r} has {found} rows; expected {rows}, as {other} says")
        first, rows = first or name, found
    assert rows is not None
    return Table({name: _with_rows(column, rows) for name, column in tensors.items()}, rows, device)


def _leading(name: str, column: Column) -> int:
    if not isinstance(column, Tensor) and not column.batch_size:
        sizes = {_leading(f"{name}.{leaf}", value) for leaf, value in column.items()}
        if len(sizes) != 1:
            raise ColumnError(
                f"column {name!r} is a TensorDict without batch size whose leaves have {sorted(sizes)} rows"
            )
        return sizes.pop()
    return column_rules.rows_of(column)


def _with_rows(column: Column, rows: int) -> Column:
    if isinstance(column, Tensor) or column.batch_size:
        return column
    return TensorDict(dict(column.items()), batch_size=[rows], device=column.device)


def _sorted_by_part(tensordict: TensorDictBase) -> tuple[dict[str, Column], dict[str, Any], dict[str, Any]]:
    tensors: dict[str, Column] = {}
    arrays: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, column in tensordict.items():
        if leaves_of.is_shared_value(column):
            values[name] = column.data
        elif leaves_of.is_stack(column):
            arrays[name] = objects.plain_column(leaves_of.listed(column))
        else:
            tensors[name] = column
    return tensors, arrays, values


def _stack_of(array: Iterable[Any]) -> Column:
    return leaves_of.stack_of(array)
