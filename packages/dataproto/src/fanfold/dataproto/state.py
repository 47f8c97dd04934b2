"""The three parts of a batch and what always holds of them.

A batch is made of tensor columns, non-tensor columns and metadata. Every column has the same number of rows. Letters:
`B` rows.
"""

from collections.abc import Mapping
from typing import Any, Self

from tensordict import TensorDictBase

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import metrics, objects, table
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnError, ColumnTypeError
from fanfold.dataproto.meta import Meta, copy_meta, copy_meta_deep
from fanfold.dataproto.objects import Array
from fanfold.dataproto.table import Table
from fanfold.dataproto.wire import Pending, reduce

_NO_COLUMNS: Mapping[str, Column] = {}


class BatchState:
    """Holds the parts; `DataProto` is this with all its methods.

    The tensor columns are in one of two forms: a `Table` (cheap to slice), or the TensorDict that `.batch` made of it.
    Once made, the TensorDict is the truth, because its owner may write to it. Parts that came over the wire stay
    encoded in `_pending` until they are touched.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_auto_padding",
        "_merge",
        "_meta",
        "_meta_of",
        "_objects",
        "_pending",
        "_table",
        "_td",
    )

    _td: TensorDictBase | None
    _table: Table | None
    _objects: dict[str, Array] | None
    _meta: Meta | None
    _meta_of: Meta | None
    _pending: Pending | None
    _merge: Mapping[str, Any]
    _auto_padding: bool

    def __init__(
        self,
        batch: TensorDictBase | None = None,
        non_tensor_batch: Mapping[str, Array] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        *,
        merge: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a batch of its parts; see `DataProto`."""
        self._td, self._table, self._pending = batch, None, None
        self._objects = dict(checked_mapping("non_tensor_batch", non_tensor_batch))
        self._meta = dict(checked_mapping("meta_info", meta_info))
        self._meta_of, self._auto_padding = None, False
        self.merge_rules = merge or {}
        self.check_consistency()

    @property
    def batch(self) -> TensorDictBase | None:
        """The tensor columns as a TensorDict with the batch size [B], or None when there are none.

        What is in it may be written. On a received batch the first access copies the rows of this batch's columns out
        of the memory that belongs to the sender, once; `batch["column"]` and `select` before that narrow what is
        copied.

        >>> DataProto.from_dict({"x": torch.zeros(2)}).batch["x"]
        tensor([0., 0.])
        """
        if self._td is None:
            found = self._table_or_none()
            if found is None:
                return None
            self._td, self._table = found.writable().to_tensordict(), None
        return self._td

    @batch.setter
    def batch(self, batch: TensorDictBase | None) -> None:
        if batch is not None:
            table.from_tensordict(batch)
        self._forget_pending_table()
        self._td, self._table = batch, None

    @property
    def non_tensor_batch(self) -> dict[str, Array]:
        """The non-tensor columns: numpy arrays with the rows first.

        >>> DataProto.from_dict(None, {"s": ["a", "b"]}).non_tensor_batch
        {'s': array(['a', 'b'], dtype=object)}
        """
        if self._objects is None:
            self._decode()
        assert self._objects is not None
        return self._objects

    @non_tensor_batch.setter
    def non_tensor_batch(self, columns: Mapping[str, Array]) -> None:
        if self._meta is None:
            self._own_meta()
        self._objects = dict(checked_mapping("non_tensor_batch", columns))

    @property
    def meta_info(self) -> Meta:
        """Values that belong to the whole batch.

        >>> DataProto(meta_info={"step": 3}).meta_info
        {'step': 3}
        """
        if self._meta is None:
            self._own_meta()
        assert self._meta is not None
        return self._meta

    @meta_info.setter
    def meta_info(self, meta: Mapping[str, Any]) -> None:
        if self._objects is None:
            self._decode()
        self._meta_of = None
        self._meta = dict(checked_mapping("meta_info", meta))

    @property
    def merge_rules(self) -> dict[str, Any]:
        """How `concat` unites values of `meta_info` that differ, by key; assign a dict to change it.

        >>> batch = DataProto.from_dict({"x": torch.zeros(2)}, meta_info={"lr": 0.1})
        >>> batch.merge_rules = {"lr": "mean"}
        >>> batch.merge_rules
        {'lr': 'mean'}
        """
        return dict(self._merge)

    @merge_rules.setter
    def merge_rules(self, rules: Mapping[str, Any]) -> None:
        for key, rule in checked_mapping("merge", rules).items():
            metrics.check_rule(key, rule)
        self._merge = dict(rules)

    def check_consistency(self) -> None:
        """Check that all columns can be columns and have the same number of rows.

        Raises:
            ColumnError: a column has other rows, no rows at all (0-d), or a layout that cannot be divided.
            ColumnTypeError: a part or a column has the wrong type.

        >>> batch = DataProto.from_dict({"x": torch.zeros(2)})
        >>> batch.non_tensor_batch["s"] = np.array(["a"])
        >>> batch.check_consistency()
        Traceback (most recent call last):
        fanfold.dataproto.errors.ColumnError: non-tensor column 's' has 1 rows; expected 2, as the tensor columns have
        """
        found = self._tensors()
        if found is not None:
            for name, column in found.columns.items():
                column_rules.check(name, column)
        for name, array in self.non_tensor_batch.items():
            objects.check(name, array)
        refuse_two_kinds(self._columns(), self.non_tensor_batch)
        self._rows()

    def _table_or_none(self) -> Table | None:
        if self._table is None and self._pending is not None:
            self._table = self._pending.take_table()
            self._release()
        return self._table

    def _tensors(self) -> Table | None:
        """The tensor columns as they are now, or None."""
        if self._td is not None:
            return table.from_tensordict(self._td)
        return self._table_or_none()

    def _columns(self) -> Mapping[str, Column]:
        found = self._tensors()
        return _NO_COLUMNS if found is None else found.columns

    def _decode(self) -> None:
        assert self._pending is not None
        values = self._pending.values()
        self._objects, self._meta = values.arrays, values.meta
        self._release()

    def _own_meta(self) -> None:
        if self._meta_of is None:
            self._decode()
        else:
            self._meta, self._meta_of = copy_meta(self._meta_of), None

    def _release(self) -> None:
        # Once everything was decoded, nothing but the tensors themselves should hold the received memory.
        if self._objects is not None and self._pending is not None and self._pending.table_rows is None:
            self._pending = None

    def _forget_pending_table(self) -> None:
        if self._pending is not None:
            self._pending.take_table()

    def _row_count(self) -> int:
        if self._td is not None:
            return int(self._td.batch_size[0])
        if self._table is not None:
            return self._table.rows
        if self._pending is not None and self._pending.table_rows is not None:
            return self._pending.table_rows
        return next((len(array) for array in self.non_tensor_batch.values()), 0)

    def _rows(self) -> int:
        """Return B, having checked that every non-tensor column has as many rows."""
        rows = self._row_count()
        if self._objects:
            for name, array in self._objects.items():
                if len(array) != rows:
                    raise ColumnError(self._rows_text(name, len(array), rows))
        return rows

    def _rows_text(self, name: str, got: int, expected: int) -> str:
        has_tensors = self._td is not None or self._table is not None
        other = "the tensor columns" if has_tensors else f"column {next(iter(self.non_tensor_batch))!r}"
        return f"non-tensor column {name!r} has {got} rows; expected {expected}, as {other} have"

    def _derive(self, tensors: Table | None, arrays: dict[str, Array], meta: Meta) -> Self:
        """Make a batch of this class from parts that nobody else holds; other attributes go along."""
        made = self._derive_piece(tensors, arrays, meta)
        made._meta, made._meta_of = meta, None
        return made

    @classmethod
    def _of_parts(cls, tensors: Table | None, arrays: dict[str, Array], meta: Meta) -> Self:
        """Make a batch of parts that nobody else holds, whatever the constructor of a subclass asks for."""
        made = object.__new__(cls)
        BatchState.__init__(made)
        made._table, made._objects, made._meta = tensors, arrays, meta
        return made

    @classmethod
    def _arrived(cls, pending: Pending, auto_padding: bool, merge: dict[str, Any], attributes: dict[str, Any]) -> Self:
        """Make a batch of what came over the wire, without looking into it."""
        made = object.__new__(cls)
        made._td, made._table, made._pending = None, None, pending
        made._objects, made._meta, made._meta_of = None, None, None
        made._merge, made._auto_padding = merge, bool(auto_padding)
        made.__dict__.update(attributes)
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return reduce(self, int(protocol))

    def _derive_piece(self, tensors: Table | None, arrays: dict[str, Array], meta_of: Meta) -> Self:
        """Make one of many batches: they share `meta_of`, and each copies it when its metadata is first touched."""
        made = object.__new__(type(self))
        made._td, made._table, made._pending = None, tensors, None
        made._objects, made._meta, made._meta_of = arrays, None, meta_of
        made._merge, made._auto_padding = self._merge, self._auto_padding
        if self.__dict__:
            made.__dict__.update(self.__dict__)
        return made

    def _meta_for_view(self) -> Meta:
        return copy_meta(self.meta_info)

    def _meta_for_copy(self) -> Meta:
        return copy_meta_deep(self.meta_info)

    def _replace(self, tensors: Table | None, arrays: dict[str, Array], meta: Meta | None = None) -> None:
        """Put new parts in place of the old ones: the last step of every operation that works in place."""
        kept = self.meta_info if meta is None else meta
        self._td, self._table, self._pending = None, tensors, None
        self._objects, self._meta, self._meta_of = arrays, kept, None


def refuse_two_kinds(tensors: Mapping[str, Column], arrays: Mapping[str, Array]) -> None:
    """Refuse a name that stands for a tensor column and for a non-tensor column.

    Raises:
        ColumnError: names it.
    """
    for name in tensors.keys() & arrays.keys():
        raise ColumnError(f"column {name!r} is a tensor column and a non-tensor column; expected one of them. Rename.")


def checked_mapping(name: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a part of a batch as it was given; None is an empty one.

    Raises:
        ColumnTypeError: no dict, or columns whose keys are no names.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ColumnTypeError(f"{name} is a {type(value).__name__}; expected a dict")
    wrong = [key for key in value if type(key) is not str]
    if wrong and name != "meta_info":
        raise ColumnTypeError(f"{name} has the key {wrong[0]!r}; expected names (str)")
    return value
