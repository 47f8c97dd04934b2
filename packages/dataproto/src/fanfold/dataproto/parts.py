"""Expressions over parts that are elsewhere: how many rows they have, what must be fetched, and the result.

Pure: headers are read and payloads are fetched by the caller. Letters: `B` rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tensordict import TensorDictBase

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.errors import ColumnTypeError, MergeError, MissingKeyError, RemoteError, SplitError
from fanfold.dataproto.shape import even_sizes
from fanfold.dataproto.table import with_common_offsets
from fanfold.dataproto.tensordicts import concat_tensordict


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
        """
        if isinstance(found, cls):
            return found
        if isinstance(found, Mapping) and isinstance(found.get("rows"), int):
            known = {name: found[name] for name in cls._fields if name in found}
            return cls(**{"type": "", **known, "columns": tuple(found.get("columns", ()))})
        raise RemoteError(f"the header of a part is {found!r}; expected type, rows, columns, nbytes and meta")


def header_of(batch: Any) -> Header:
    """Describe a batch (or a TensorDict, or anything with a length)."""
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
    """

    header: Any
    payload: Any
    columns: Mapping[str, Any] | None = None


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
class Leaf:
    """One part."""

    part: Part


@dataclass(frozen=True)
class Below:
    """Rows of several, in order."""

    nodes: tuple["Node", ...]


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
    """Some columns."""

    node: "Node"
    names: tuple[str, ...]


Node: TypeAlias = Leaf | Below | Beside | Cut | Columns
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
    return rows_of(node.node, read)


def columns_of(node: Node, read: ReadHeader) -> list[str]:
    """Return the names of the columns."""
    if isinstance(node, Leaf):
        return list(read(node.part).columns)
    if isinstance(node, Below):
        return columns_of(node.nodes[0], read)
    if isinstance(node, Beside):
        return list(dict.fromkeys(name for child in node.nodes for name in columns_of(child, read)))
    if isinstance(node, Cut):
        return columns_of(node.node, read)
    return list(node.names)


@dataclass(frozen=True)
class Take:
    """Rows first to last of one part (None: all), some of its columns (None: all)."""

    part: Part
    first: int | None
    last: int | None
    names: tuple[str, ...] | None

    def handles(self) -> list[Any]:
        """What must be fetched."""
        if self.part.columns is None:
            return [self.part.payload]
        names = self.part.columns if self.names is None else self.names
        for name in names:
            if name not in self.part.columns:
                raise MissingKeyError(f"there is no column {name!r}; the producer stored {sorted(self.part.columns)}")
        return [self.part.payload, *(self.part.columns[name] for name in names)]


@dataclass(frozen=True)
class Join:
    """Values below (or beside) each other."""

    items: tuple["Wanted", ...]
    beside: bool = False


Wanted: TypeAlias = Take | Join


def plan(node: Node, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader) -> Wanted:
    """Return what must be fetched for some rows (None: all) and columns (None: all) of an expression."""
    if isinstance(node, Leaf):
        return _take(node.part, bounds, names, read)
    if isinstance(node, Cut):
        first, last = node.cut.bounds(rows_of(node.node, read))
        return plan(node.node, _inside((first, last), bounds), names, read)
    if isinstance(node, Columns):
        missing = [name for name in names or () if name not in node.names]
        if missing:
            raise MissingKeyError(f"there is no column {missing[0]!r}; {sorted(node.names)} were selected before")
        return plan(node.node, bounds, node.names if names is None else names, read)
    if isinstance(node, Beside):
        return _plan_beside(node, bounds, names, read)
    return _plan_below(node, bounds, names, read)


def _take(part: Part, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader) -> Take:
    if bounds is None or (bounds[0] == 0 and bounds[1] == read(part).rows):
        return Take(part, None, None, names)
    return Take(part, *bounds, names)


def _inside(outer: tuple[int, int], bounds: tuple[int, int] | None) -> tuple[int, int]:
    return outer if bounds is None else (outer[0] + bounds[0], outer[0] + bounds[1])


def _plan_beside(
    node: Beside, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader
) -> Wanted:
    rows_of(node, read)
    if names is None:
        return Join(tuple(plan(child, bounds, None, read) for child in node.nodes), beside=True)
    items, left = [], list(names)
    for child in node.nodes:
        mine = tuple(name for name in left if name in columns_of(child, read))
        left = [name for name in left if name not in mine]
        if mine:
            items.append(plan(child, bounds, mine, read))
    if left or not items:
        raise MissingKeyError(f"there is no column {left[:1]}; there are {sorted(columns_of(node, read))}")
    return Join(tuple(items), beside=True)


def _plan_below(node: Below, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader) -> Wanted:
    if bounds is None:
        return Join(tuple(plan(child, None, names, read) for child in node.nodes))
    items, start = [], 0
    for child in node.nodes:
        rows = rows_of(child, read)
        first, last = max(bounds[0] - start, 0), min(bounds[1] - start, rows)
        if first < last:
            items.append(plan(child, None if (first, last) == (0, rows) else (first, last), names, read))
        start += rows
    # No rows still have columns: one part must say which.
    return Join(tuple(items)) if items else plan(node.nodes[0], (0, 0), names, read)


def handles_of(wanted: Wanted) -> Iterator[Any]:
    """Return the handles to fetch; one may come twice."""
    if isinstance(wanted, Take):
        yield from wanted.handles()
    else:
        for item in wanted.items:
            yield from handles_of(item)


def assemble(wanted: Wanted, values: Mapping[Any, Any]) -> Any:
    """Make the result of fetched values by handle."""
    if isinstance(wanted, Take):
        return _cut_value(wanted, values)
    made = [assemble(item, values) for item in wanted.items]
    if len(made) == 1:
        return made[0]
    return _joined_beside(made) if wanted.beside else _joined_below(made)


def _cut_value(wanted: Take, values: Mapping[Any, Any]) -> Any:
    handles = wanted.handles()
    found = values[handles[0]]
    if wanted.part.columns is not None:
        found = _joined_beside([found, *(values[handle] for handle in handles[1:])])
    elif wanted.names is not None:
        found = _selected(found, wanted.names)
    return found if wanted.first is None else found[wanted.first : wanted.last]


def _selected(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, DataProto):
        return select_columns(value, names)
    if isinstance(value, TensorDictBase):
        missing = sorted(set(names) - set(value.keys()))
        if missing:
            raise MissingKeyError(f"there is no column {missing[0]!r}; there are {sorted(value.keys())}")
        return value.select(*names)
    raise ColumnTypeError(
        f"columns {list(names)} were selected of a {type(value).__name__}; expected a DataProto or TensorDict"
    )


def _joined_beside(made: list[Any]) -> Any:
    result = made[0].select()
    for other in made[1:]:
        result = result.union(other)
    tensors = result._tensors()
    if tensors is not None:
        result._table, result._td = with_common_offsets(tensors), None
    return result


def _joined_below(made: list[Any]) -> Any:
    kinds = {type(value) for value in made}
    if len(kinds) > 1:
        raise MergeError(
            f"parts of the types {sorted(kind.__name__ for kind in kinds)} cannot be put below each other; expected one"
        )
    if isinstance(made[0], TensorDictBase):
        return concat_tensordict(made)
    if not callable(getattr(made[0], "concat", None)):
        raise MergeError(f"parts of the type {type(made[0]).__name__} cannot be put below each other; it has no concat")
    return type(made[0]).concat(made)
