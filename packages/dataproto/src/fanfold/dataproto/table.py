"""The tensor columns of a batch as a plain value: what row operations work on, without the cost of a TensorDict.

A `Table` becomes a TensorDict when somebody asks for `.batch`, and not before. Letters: `B` rows.
"""

from collections.abc import Callable, Mapping

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import jagged
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnError, ColumnTypeError
from fanfold.dataproto.jagged import Parts, Shared

_NOTHING_MAPPED: frozenset[str] = frozenset()


class Table:
    """Columns [B, ...] by name, the number of rows, and the device that their TensorDict states (None: none stated).

    It is never changed. `mapped` names the columns whose memory must not be written, because it is somebody else's.
    """

    __slots__ = ("columns", "device", "mapped", "rows")

    def __init__(
        self,
        columns: Mapping[str, Column],
        rows: int,
        device: torch.device | None = None,
        mapped: frozenset[str] = _NOTHING_MAPPED,
    ) -> None:
        # Not a frozen dataclass: its constructor takes four times as long, which mini-batches would feel.
        self.columns = columns
        self.rows = rows
        self.device = device
        self.mapped = mapped

    def views(self, rows: int, change: Callable[[Column], Column]) -> "Table":
        """Apply an operation whose results share memory with this table."""
        changed = {name: change(column) for name, column in self.columns.items()}
        return Table(changed, rows, self.device, self.mapped)

    def copies(self, rows: int, change: Callable[[Column], Column]) -> "Table":
        """Apply an operation whose results have memory of their own."""
        return Table({name: change(column) for name, column in self.columns.items()}, rows, self.device)

    def slice_rows(self, start: int, stop: int) -> "Table":
        """Rows `start` to `stop`, as views."""
        shared = Shared()
        return self.views(stop - start, lambda column: column_rules.slice_rows(column, start, stop, shared))

    def writable(self) -> "Table":
        """Copy the columns that are mapped, so that everything in the result may be written."""
        if not self.mapped:
            return self
        shared = Shared()
        own = {
            name: column_rules.clone(column, shared) if name in self.mapped else column
            for name, column in self.columns.items()
        }
        return Table(own, self.rows, self.device)

    def trusted(self) -> "Table":
        """Forget that columns are mapped: the reader has promised not to write."""
        return Table(self.columns, self.rows, self.device)

    def to_tensordict(self) -> TensorDict:
        """Make the TensorDict of these columns; they must all be writable."""
        return TensorDict(dict(self.columns), batch_size=[self.rows], device=self.device)


def from_tensordict(tensordict: TensorDictBase) -> Table:
    """Read the columns of a TensorDict without copying them.

    Raises:
        ColumnTypeError: not a TensorDict.
        ColumnError: not exactly one batch dimension, or a column that cannot be one.
    """
    if not isinstance(tensordict, TensorDictBase):
        raise ColumnTypeError(f"batch is a {type(tensordict).__name__}; expected a TensorDict or None. See from_dict.")
    if len(tensordict.batch_size) != 1:
        raise ColumnError(
            f"batch has the batch size {list(tensordict.batch_size)}; expected exactly one batch dimension, the rows. "
            "Set batch_size=[rows], or use from_tensordict."
        )
    plain = _unstacked(tensordict)
    return Table(dict(plain.items()), int(tensordict.batch_size[0]), tensordict.device)


def _unstacked(tensordict: TensorDictBase) -> TensorDictBase:
    if not isinstance(tensordict, LazyStackedTensorDict):
        return tensordict
    try:
        return tensordict.contiguous()
    except RuntimeError as error:
        raise ColumnError(
            "batch is a lazily stacked TensorDict whose rows differ in shape; expected columns with equal row shapes. "
            "Make ragged columns jagged tensors (torch.nested, layout=torch.jagged)."
        ) from error


def with_common_offsets(found: Table) -> Table:
    """Give jagged columns with equal row lengths one offsets tensor, so that they can be computed with each other."""
    known: list[Tensor] = []
    shared = Shared()

    def common(column: Column) -> Column:
        if not isinstance(column, Tensor) or not column.is_nested:
            return column
        values, offsets, dim = jagged.parts(column, shared)
        same = next((other for other in known if torch.equal(other, offsets)), None)
        if same is None:
            known.append(offsets)
            return column
        return column if same is offsets else jagged.build(Parts(values, same, dim))

    return found.views(found.rows, common)
