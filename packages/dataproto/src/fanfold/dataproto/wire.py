"""The form in which a batch travels: memory of tensors as buffers out of band, the rest in one block.

    rebuild(class, TAG, head, table, block, buffers)

    head    (rows of the tensor columns or None, number of buffers that belong to the table, auto padding, merge rules,
            attributes of a subclass)
    table   (device, [offsets], [(name, column)]), None when there are no tensor columns
    column  ("d", dtype, shape, buffer) | ("j", ragged dimension, offsets, values) | ("t", batch size, names, device,
            [(name, column)]) | ("v" or "s" or "x", position in the block's list of leaves, batch size)
    block   pickle of (arrays, meta_info, leaves)

Pickle protocol 5 with a buffer callback (Ray's, for one) copies no tensor; older protocols carry copies.
"""

import pickle
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tensordict import NonTensorData, TensorDict

from fanfold.dataproto import blob, jagged, leaves
from fanfold.dataproto import columns as column_rules
from fanfold.dataproto.buffers import spec_of, tensor_from
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import DataProtoError, WireError
from fanfold.dataproto.jagged import Parts, Shared
from fanfold.dataproto.meta import Meta
from fanfold.dataproto.objects import Array
from fanfold.dataproto.table import Table

TAG = "fanfold.dataproto/1"
_BLOCK_OUTSIDE_FROM = 64 * 1024
_IN_WORK = threading.local()  # batches that are being pickled, to notice one that contains itself
_BUFFER: Any = pickle.PickleBuffer


class Values(NamedTuple):
    """What the block holds."""

    arrays: dict[str, Array]
    meta: Meta
    leaves: list[Any]


class _Writer:
    """Collects buffers, offsets and leaves while columns are described."""

    def __init__(self) -> None:
        self.memory: list[Array] = []
        self.offsets: list[Any] = []
        self.leaves: list[Any] = []
        self.labels: list[tuple[str, bool]] = []  # of each leaf: its column, and whether it is a list of rows
        self._known: dict[int, tuple[object, int]] = {}
        self._shared = Shared()

    def column(self, name: str, column: Column) -> tuple[Any, ...]:
        if column_rules.is_tensor(column):
            return self._jagged(column) if column.is_nested else ("d", *spec_of(column, self.memory))
        if column_rules.is_tree(column):
            return self._tree(name, column)
        return self._leaf(name, column)

    def _jagged(self, column: Column) -> tuple[Any, ...]:
        values, offsets, dim = jagged.parts(column, self._shared)
        if id(offsets) not in self._known:
            self.offsets.append(tuple(spec_of(offsets, self.memory)))
            self._known[id(offsets)] = (offsets, len(self.offsets) - 1)
        return "j", dim, self._known[id(offsets)][1], tuple(spec_of(values, self.memory))

    def _tree(self, top: str, column: Column) -> tuple[Any, ...]:
        names = column.names if any(name is not None for name in column.names) else None
        inside = [(name, self.column(f"{top}.{name}", leaf)) for name, leaf in column.items()]
        return "t", tuple(column.batch_size), names, _device_name(column.device), inside

    def _leaf(self, name: str, column: Column) -> tuple[Any, ...]:
        self.labels.append((name, leaves.is_stack(column)))
        if leaves.is_shared_value(column):
            self.leaves.append(column.data)
            return "v", len(self.leaves) - 1, tuple(column.batch_size)
        if leaves.is_stack(column):
            self.leaves.append(leaves.listed(column))
            return "s", len(self.leaves) - 1, tuple(column.batch_size)
        self.leaves.append(column)
        return "x", len(self.leaves) - 1, tuple(column.batch_size)


def _device_name(device: torch.device | None) -> str | None:
    # Values arrive on the CPU, so a stated CUDA device would be untrue there.
    return None if device is None else "cpu"


def reduce(state: Any, protocol: int) -> tuple[Any, ...]:
    """Return what pickle needs to make this batch again.

    Raises:
        WireError: an object column or `meta_info` holds something that cannot be pickled; names column and row.
    """
    found: Table | None = state._tensors()
    state._rows()
    in_work: set[int] = _IN_WORK.__dict__.setdefault("batches", set())
    if id(state) in in_work:
        raise WireError("this batch cannot be pickled: it contains itself, in a cell or in meta_info")
    in_work.add(id(state))
    try:
        return _reduced(state, found, protocol)
    finally:
        in_work.remove(id(state))


def _reduced(state: Any, found: Table | None, protocol: int) -> tuple[Any, ...]:
    writer = _Writer()
    described = None if found is None else _describe(found, writer)
    block, outside = _dump(Values(state.non_tensor_batch, state.meta_info, writer.leaves), writer.labels)
    own = (state._auto_padding, state._merge or None, state.__dict__ or None)
    head = (None if found is None else found.rows, len(writer.memory), *own)
    return rebuild, (type(state), TAG, head, described, *_pack(writer.memory, block, outside, protocol))


def _describe(found: Table, writer: _Writer) -> tuple[Any, ...]:
    described = [(name, writer.column(name, column)) for name, column in found.columns.items()]
    return _device_name(found.device), writer.offsets, described


def _dump(values: Values, labels: Sequence[tuple[str, bool]]) -> tuple[bytes, list[pickle.PickleBuffer]]:
    try:
        return blob.dumps(tuple(values))
    except Exception as error:
        named = [(name, leaf if rows else [leaf]) for (name, rows), leaf in zip(labels, values.leaves, strict=True)]
        where = blob.culprit([*values.arrays.items(), *named], values.meta)
        raise WireError(f"this batch cannot be pickled: {where or f'{type(error).__name__}: {error}'}") from error


def _pack(
    memory: list[Array], block: bytes, outside: list[pickle.PickleBuffer], protocol: int
) -> tuple[Any, tuple[Any, ...]]:
    if protocol < 5:  # noqa: PLR2004 (the first protocol with buffers)
        return block, tuple(bytearray(memoryview(item).cast("B")) for item in (*_flat(memory), *_raw(outside)))
    carried = pickle.PickleBuffer(block) if len(block) >= _BLOCK_OUTSIDE_FROM else block
    return carried, (*map(_BUFFER, memory), *outside)


def _flat(memory: list[Array]) -> list[Any]:
    return [array.reshape(-1) for array in memory]


def _raw(outside: list[pickle.PickleBuffer]) -> list[memoryview]:
    return [buffer.raw() for buffer in outside]


class Pending:
    """A batch that has arrived and has not been looked at: memory and a block, both as they came."""

    __slots__ = ("_block", "_buffers", "_described", "_own", "_values", "table_rows")

    def __init__(self, head: Any, described: Any, block: Any, buffers: Sequence[Any]) -> None:
        """Keep the payload; only its outline is checked."""
        rows, own = head[0], head[1]
        if not (rows is None or isinstance(rows, int)) or (rows is None) != (described is None):
            raise WireError(f"the head of a received batch is {head!r}; expected rows and the number of buffers")
        self.table_rows: int | None = rows
        self._own, self._described, self._block, self._buffers = own, described, block, buffers
        self._values: Values | None = None

    def take_table(self) -> Table | None:
        """Map the tensor columns; afterwards they are no longer kept here."""
        described, rows = self._described, self.table_rows
        self._described, self.table_rows = None, None
        if described is None or rows is None:
            return None
        try:
            return self._table(described, rows)
        except DataProtoError:
            raise
        except Exception as error:
            raise WireError(f"the columns of a received batch are damaged: {type(error).__name__}: {error}") from error

    def _table(self, described: Any, rows: int) -> Table:
        device, offset_specs, specs = described
        reader = _Reader(self._buffers, self)
        reader.offsets = [reader.tensor(spec) for spec in offset_specs]
        columns = {}
        for name, spec in specs:
            columns[name] = reader.column(name, spec)
            if column_rules.rows_of(columns[name]) != rows:
                raise WireError(f"column {name!r} has {column_rules.rows_of(columns[name])} rows; expected {rows}")
        return Table(columns, rows, None if device is None else torch.device(device), frozenset(reader.mapped))

    def values(self, *, writable: bool = True) -> Values:
        """Decode the block, once."""
        if self._values is None:
            loaded = blob.loads(self._block, self._buffers[self._own :], writable=writable)
            try:
                self._values = Values(*loaded)
            except TypeError as error:
                raise WireError(f"the block of a received batch is no batch's: {error}") from error
        return self._values


class _Reader:
    """Makes columns over buffers and notes which of them must not be written."""

    def __init__(self, buffers: Sequence[Any], pending: Pending) -> None:
        self._buffers, self._pending = buffers, pending
        self.offsets: list[Any] = []
        self.mapped: set[str] = set()
        self._used: set[Any] = set()

    def tensor(self, spec: Any) -> tuple[torch.Tensor, bool]:
        """Read a tensor. A writer gives each its own buffer; two over one could make a small payload large."""
        position = spec[2]
        if position != -1 and position in self._used:
            raise WireError(f"two tensors of a received batch are said to be in buffer {position}")
        self._used.add(position)
        return tensor_from(spec, self._buffers)

    def column(self, top: str, spec: Any) -> Column:
        kind, *rest = spec
        match kind:
            case "d":
                return self._note(top, *self.tensor(rest))
            case "j":
                dim, position, values = rest
                made = self._note(top, *self.tensor(values))
                return jagged.checked(Parts(made, self._note(top, *self.offsets[position]), dim))
            case "t":
                return self._tree(top, *rest)
            case "v" | "s" | "x":
                return _leaf(kind, self._pending.values().leaves[rest[0]], rest[1])
        raise WireError(f"column {top!r} has the unknown kind {kind!r}")

    def _note(self, top: str, tensor: torch.Tensor, readonly: bool) -> torch.Tensor:
        if readonly:
            self.mapped.add(top)
        return tensor

    def _tree(self, top: str, batch_size: Any, names: Any, device: Any, inside: Any) -> TensorDict:
        made = {name: self.column(top, spec) for name, spec in inside}
        if names is None:
            return TensorDict(made, batch_size=list(batch_size), device=device)
        return TensorDict(made, batch_size=list(batch_size), device=device, names=names)


def _leaf(kind: str, value: Any, batch_size: tuple[int, ...]) -> Column:
    if kind == "v":
        return NonTensorData(value, batch_size=list(batch_size))
    if kind == "s":
        return leaves.unlisted(value, batch_size)
    return value


def rebuild(  # noqa: PLR0913, PLR0917 (pickle calls it with what `reduce` returned)
    cls: Any, tag: object, head: Any, described: Any, block: Any, buffers: Sequence[Any]
) -> Any:
    """Make a batch of what `reduce` wrote; nothing is decoded or copied yet.

    Raises:
        WireError: the payload is of another kind or version.
    """
    if tag != TAG:
        raise WireError(f"a received batch has the format {tag!r}; expected {TAG!r}. Use one version on both sides.")
    try:
        _, _, auto_padding, merge, attributes = head
        pending, merge, attributes = Pending(head, described, block, buffers), dict(merge or {}), dict(attributes or {})
    except (TypeError, ValueError) as error:
        raise WireError(f"a received batch has the head {head!r}, which is damaged: {error}") from error
    return cls._arrived(pending, auto_padding, merge, attributes)
