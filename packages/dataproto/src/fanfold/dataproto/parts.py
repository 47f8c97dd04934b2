"""Expressions over parts that are elsewhere: how many rows they have, what must be fetched, and the result.

Pure: headers are read and payloads are fetched by the caller. Letters: `B` rows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from tensordict import TensorDictBase

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.errors import MergeError, MissingKeyError, RemoteError, RowIndexError, SplitError
from fanfold.dataproto.shape import even_sizes


class Header(NamedTuple):
    """What is known of a part without its rows."""

    type: str
    rows: int
    columns: tuple[str, ...] = ()
    nbytes: int = 0
    meta: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, found: Any) -> "Header":
        """Return a header, also of a mapping with at least `rows`.

        Raises:
            RemoteError: neither.

        >>> Header.of({"rows": 3, "columns": ["x"]})
        Header(type='', rows=3, columns=('x',), nbytes=0, meta=None)
        """
        if isinstance(found, cls):
            return found
        if isinstance(found, Mapping) and isinstance(found.get("rows"), int):
            known = {name: found[name] for name in cls._fields if name in found}
            return cls(**{"type": "", **known, "columns": tuple(found.get("columns", ()))})
        raise RemoteError(f"the header of a part is {found!r}; expected type, rows, columns, nbytes and meta")


def header_of(batch: Any) -> Header:
    """Describe a batch (or a TensorDict, or anything with a length).

    >>> header_of(DataProto.from_dict({"x": torch.arange(4)}, meta_info={"step": 1}))[1:]
    (4, ('x',), 32, {'step': 1})
    """
    name = f"{type(batch).__module__}.{type(batch).__qualname__}"
    if isinstance(batch, DataProto):
        return Header(name, len(batch), column_names(batch), batch.nbytes, batch._meta_for_view())
    if isinstance(batch, TensorDictBase):
        found = tuple(batch.keys())
        return Header(
            name, int(batch.batch_size[0]), found, sum(column_rules.nbytes(column) for column in batch.values())
        )
    return Header(name, len(batch))


def column_names(batch: DataProto) -> tuple[str, ...]:
    """Names of the columns of both kinds."""
    return (*batch._columns(), *batch.non_tensor_batch)


def select_columns(batch: DataProto, names: Iterable[str]) -> DataProto:
    """Keep columns by name, whichever kind they are; metadata stays.

    Raises:
        MissingKeyError: there is no such column.
    """
    wanted, tensors = list(names), batch._columns()
    for name in wanted:
        if name not in tensors and name not in batch.non_tensor_batch:
            raise MissingKeyError(f"there is no column {name!r}; there are {sorted(column_names(batch))}")
    has_tensors = batch._tensors() is not None
    chosen = [name for name in wanted if name in tensors] if has_tensors else None
    return batch.select(chosen, [name for name in wanted if name not in tensors])


def one_column(batch: DataProto, name: str | None) -> DataProto:
    """One column without metadata, or with None no column but the row count and the metadata."""
    if name is not None:
        return select_columns(batch, [name]).select(meta_info_keys=[])
    return batch.select(None if batch._tensors() is None else [], [], None)


@dataclass(frozen=True)
class Part:
    """One stored batch.

    Attributes:
        header: a `Header`, or the handle of one
        payload: the handle of the batch; where `columns` is given, of its row count and metadata only
        columns: handles of columns that are stored apart
        rest: the handle of the other columns, where only some are apart. Values are None then for what turned out not
            to be there.
    """

    header: Any
    payload: Any
    columns: Mapping[str, Any] | None = None
    rest: Any = None


@dataclass(frozen=True)
class Slice:
    """Consecutive rows of whatever number there are."""

    start: int | None
    end: int | None

    def bounds(self, rows: int) -> tuple[int, int]:
        """Return the first row and the one after the last."""
        first, last, _ = slice(self.start, self.end).indices(rows)
        return first, max(first, last)


@dataclass(frozen=True)
class Chunk:
    """Piece `at` of `count`."""

    at: int
    count: int
    uneven: bool

    def bounds(self, rows: int) -> tuple[int, int]:
        """Return the first row and the one after the last."""
        if rows % self.count and not self.uneven:
            raise SplitError(
                f"{rows} rows that were not here when they were divided cannot make {self.count} equal chunks; "
                "use chunk(..., uneven='split')"
            )
        sizes = even_sizes(rows, self.count)
        first = sum(sizes[: self.at])
        return first, first + sizes[self.at]


@dataclass(frozen=True)
class Share(Chunk):
    """Part `at` of `count` for one of `count` readers: any even division will do.

    So what one call produced in as many parts needs no counting, and no waiting: reader k gets part k as it is.
    """

    uneven: bool = True

    def straight(self, node: "Node") -> "Node | None":
        """Return what the reader gets where nothing has to be counted, else None."""
        if isinstance(node, Columns):
            inside = self.straight(node.node)
            return None if inside is None else replace(node, node=inside)
        if isinstance(node, Below) and node.one_call and len(node.nodes) == self.count:
            return node.nodes[self.at]
        return node if self.count == 1 else None


@dataclass(frozen=True)
class Leaf:
    """One part."""

    part: Part


@dataclass(frozen=True)
class Below:
    """Rows of several, in order; `one_call` when they are what the ranks of one call returned."""

    nodes: tuple["Node", ...]
    one_call: bool = False


@dataclass(frozen=True)
class Beside:
    """Columns of several with equal rows."""

    nodes: tuple["Node", ...]


@dataclass(frozen=True)
class Cut:
    """Some consecutive rows."""

    node: "Node"
    cut: Slice | Chunk


@dataclass(frozen=True)
class Columns:
    """Some columns; `lenient` when those that are not there are left out."""

    node: "Node"
    names: tuple[str, ...]
    lenient: bool = False


@dataclass(frozen=True)
class Picked:
    """Some rows, in any order: row `indices[k]` is the k-th; one may come more than once."""

    node: "Node"
    indices: tuple[int, ...]


Node: TypeAlias = Leaf | Below | Beside | Cut | Columns | Picked
ReadHeader: TypeAlias = Callable[[Part], Header]


def parts_of(node: Node) -> list[Part]:
    """Return all parts of an expression, in order."""
    if isinstance(node, Leaf):
        return [node.part]
    inside = node.nodes if isinstance(node, Below | Beside) else (node.node,)
    return [part for child in inside for part in parts_of(child)]


def rows_of(node: Node, read: ReadHeader) -> int:
    """Return B."""
    if isinstance(node, Leaf):
        return read(node.part).rows
    if isinstance(node, Below):
        return sum(rows_of(child, read) for child in node.nodes)
    if isinstance(node, Beside):
        counts = [rows_of(child, read) for child in node.nodes]
        if len(set(counts)) != 1:
            raise MergeError(f"union of futures with {counts} rows; expected as many in each")
        return counts[0]
    if isinstance(node, Cut):
        first, last = node.cut.bounds(rows_of(node.node, read))
        return last - first
    rows = rows_of(node.node, read)
    if isinstance(node, Picked):
        if node.indices and max(node.indices) >= rows:
            raise RowIndexError(f"row {max(node.indices)} was selected; there are {rows}")
        return len(node.indices)
    return rows


def columns_of(node: Node, read: ReadHeader) -> list[str]:
    """Return the names of the columns."""
    if isinstance(node, Leaf):
        return list(read(node.part).columns)
    if isinstance(node, Below):
        return columns_of(node.nodes[0], read)
    if isinstance(node, Beside):
        return list(dict.fromkeys(name for child in node.nodes for name in columns_of(child, read)))
    if isinstance(node, Cut | Picked):
        return columns_of(node.node, read)
    present = columns_of(node.node, read) if node.lenient else node.names
    return [name for name in node.names if name in present]
