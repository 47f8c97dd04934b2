"""Batches whose rows are elsewhere or not here yet.

A backend stores values and gives out handles; a `PartStore` is all this module asks of it. A `DataProtoFuture` is an
expression over parts: below each other, beside each other, some rows, some columns. Nothing is fetched and no row
count is assumed until `get`, which fetches the parts that overlap the rows that are asked for, and only those.

Letters: `B` rows.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from fanfold.dataproto import fetch, indexing, parts
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.errors import ColumnTypeError, MergeError, MissingKeyError, RemoteError, RemoteTimeoutError
from fanfold.dataproto.parts import Below, Beside, Chunk, Cut, Header, Leaf, Node, Part, Slice
from fanfold.dataproto.shape import Uneven


class PartStore(Protocol):
    """Where parts are. A backend supplies one; it must be picklable if futures are to travel."""

    def put(self, value: object) -> Any:
        """Store a value once and return a handle, which may be pickled."""

    def fetch(self, handles: Sequence[Any], timeout: float | None) -> list[Any]:
        """Return the values of payload handles, waiting at most `timeout` seconds (None: the store's own limit)."""

    def header(self, handle: Any, timeout: float | None) -> Any:
        """Return the `Header`, or a mapping with its fields, behind a handle, waiting at most `timeout` seconds."""

    def free(self, handles: Sequence[Any]) -> None:
        """Drop the values of handles; nobody fetches them again."""


@dataclass
class _Limit:
    """What is left of the time that a caller gave."""

    seconds: float | None
    _start: float = field(default_factory=time.monotonic)

    def left(self) -> float | None:
        if self.seconds is None:
            return None
        rest = self.seconds - (time.monotonic() - self._start)
        if rest <= 0:
            raise RemoteTimeoutError(
                f"a part did not arrive within {self.seconds} s; raise timeout=, or ask what its rank does"
            )
        return rest


class DataProtoFuture:
    """Rows that are not here: results that do not exist yet, or batches that stay where they are.

    Args:
        store: where the parts are
        node: the expression; see `of`
    """

    def __init__(self, store: PartStore, node: Node) -> None:
        self._store, self._node = store, node
        self._headers: dict[int, Header] = {}

    @classmethod
    def of(cls, store: PartStore, found: Iterable[Part | tuple[Any, Any]]) -> Self:
        """Make a future of parts, or of (header, payload) handles, in the order of their rows.

        Raises:
            MergeError: no parts.
        """
        leaves = [Leaf(part if isinstance(part, Part) else Part(*part)) for part in found]
        if not leaves:
            raise MergeError(
                "a DataProtoFuture of no parts; expected at least one, because only a part knows the columns"
            )
        return cls(store, leaves[0] if len(leaves) == 1 else Below(tuple(leaves)))

    @staticmethod
    def concat(futures: Sequence["DataProtoFuture"]) -> "DataProtoFuture":
        """Put futures below each other, without waiting for any of them.

        Raises:
            MergeError: no futures, or futures of different stores.
        """
        listed = _futures("concat", futures)
        return type(listed[0])(listed[0]._store, Below(tuple(future._node for future in listed)))

    def union(self, *others: "DataProtoFuture") -> Self:
        """Put the columns of other futures beside these, without waiting; `get` refuses different numbers of rows."""
        listed = _futures("union", (self, *others))
        return type(self)(self._store, Beside(tuple(future._node for future in listed)))

    def chunk(self, chunks: int, *, uneven: Uneven | None = None) -> list[Self]:
        """Divide into consecutive pieces without waiting; a chunk of a chunk is a piece of that piece.

        Args:
            chunks: the number of pieces
            uneven: "split" gives sizes that differ by one; "error" and None make `get` refuse what does not divide

        Raises:
            SplitError: fewer than one piece, or `uneven="pad"`, which needs the rows.
        """
        count = indexing.at_least("chunks", chunks, 1)
        if uneven not in (None, "split", "error"):
            raise ColumnTypeError(
                f"uneven is {uneven!r}; expected 'split' or 'error', since rows that are not here cannot be padded"
            )
        return [self._cut(Chunk(at, count, uneven == "split")) for at in range(count)]

    def slice(self, start: int | None = None, end: int | None = None) -> Self:
        """Return rows `start` to `end` without waiting; negative numbers count from the end."""
        return self._cut(Slice(start, end))

    def __getitem__(self, rows: Any) -> Self:
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise ColumnTypeError(
                f"a DataProtoFuture was indexed with {rows!r}; expected a slice of consecutive rows. Use get() first."
            )
        return self.slice(rows.start, rows.stop)

    def select(self, columns: Iterable[str]) -> Self:
        """Keep some columns; where the producer stored columns apart, only these are fetched."""
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        return type(self)(self._store, parts.Columns(self._node, names))

    def _cut(self, cut: Slice | Chunk) -> Self:
        made = type(self)(self._store, Cut(self._node, cut))
        made._headers = self._headers
        return made

    def rows(self, timeout: float | None = None) -> int:
        """Return B, waiting for the headers of the parts, not for their rows.

        Raises:
            RemoteTimeoutError: a header did not arrive in time.
            SplitError: a chunk that does not divide.
        """
        return parts.rows_of(self._node, self._header_reader(_Limit(timeout)))

    def __len__(self) -> int:
        return self.rows()

    def columns(self, timeout: float | None = None) -> list[str]:
        """Return the names of the columns, waiting for headers only."""
        return parts.columns_of(self._node, self._header_reader(_Limit(timeout)))

    def headers(self, timeout: float | None = None) -> list[Header]:
        """Return the headers of all parts, in the order of the expression."""
        read = self._header_reader(_Limit(timeout))
        return [read(part) for part in parts.parts_of(self._node)]

    def get(self, timeout: float | None = None) -> Any:
        """Fetch the parts that overlap these rows, cut and join them.

        Args:
            timeout: seconds for everything together; None leaves the limit to the store

        Raises:
            RemoteTimeoutError: a header or a part did not arrive in time.
            MissingKeyError: a selected column that no part has.
            MergeError: parts that do not fit together.
        """
        limit = _Limit(timeout)
        read = self._header_reader(limit)
        wanted = fetch.plan(self._node, None, None, read)
        handles = list(dict.fromkeys(fetch.handles_of(wanted)))
        values = self._store.fetch(handles, limit.left()) if handles else []
        return fetch.assemble(wanted, dict(zip(handles, values, strict=True)))

    def result(self, timeout: float | None = None) -> Any:
        """Do the same as `get`."""
        return self.get(timeout)

    def _header_reader(self, limit: _Limit) -> Any:
        def read(part: Part) -> Header:
            if id(part) not in self._headers:
                known = isinstance(part.header, Header | Mapping)
                found = part.header if known else self._store.header(part.header, limit.left())
                self._headers[id(part)] = Header.of(found)
            return self._headers[id(part)]

        return read

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._store, self._node)

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(parts.parts_of(self._node))} parts"


def _futures(what: str, futures: Iterable[Any]) -> list[DataProtoFuture]:
    listed = list(futures)
    if not listed:
        raise MergeError(f"{what} got no futures; expected at least one")
    for position, future in enumerate(listed):
        if not isinstance(future, DataProtoFuture):
            raise ColumnTypeError(f"{what}: entry {position} is a {type(future).__name__}; expected a DataProtoFuture")
        if future._store is not listed[0]._store and future._store != listed[0]._store:
            raise MergeError(f"{what}: entry {position} belongs to another store than entry 0; expected one")
    return listed


class RemoteBatch:
    """A batch that was stored once, column by column, and is used in many calls.

    Made by `stage`. Whoever holds it can ask for its rows and columns without fetching, pass it on, and fetch some of
    it.
    """

    def __init__(self, store: PartStore, part: Part) -> None:
        self._store, self._part, self._freed = store, part, False

    @classmethod
    def stage(cls, batch: DataProto, store: PartStore) -> Self:
        """Store every column of a batch apart, once.

        Raises:
            ColumnTypeError: not a DataProto.
        """
        if not isinstance(batch, DataProto):
            raise ColumnTypeError(f"stage got a {type(batch).__name__}; expected a DataProto")
        header = parts.header_of(batch)
        stored = {name: store.put(parts.one_column(batch, name)) for name in header.columns}
        return cls(store, Part(header, store.put(parts.one_column(batch, None)), stored))

    def __len__(self) -> int:
        return self._header.rows

    @property
    def _header(self) -> Header:
        return Header.of(self._part.header)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._header.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return self._header.nbytes

    def future(self) -> DataProtoFuture:
        """Return the same rows as a future, to slice, chunk, join and pass on."""
        self._check()
        return DataProtoFuture(self._store, Leaf(self._part))

    def select(self, columns: Iterable[str]) -> Self:
        """Return a batch of some of the columns, without fetching.

        Raises:
            MissingKeyError: there is no such column.
        """
        self._check()
        names = [columns] if isinstance(columns, str) else list(columns)
        _check_names(names, self.columns)
        header = self._header._replace(columns=tuple(names))
        stored = self._part.columns or {}
        return type(self)(self._store, Part(header, self._part.payload, {name: stored[name] for name in names}))

    def chunk(self, chunks: int, *, uneven: Uneven | None = None) -> list[DataProtoFuture]:
        """Divide into consecutive pieces, without fetching."""
        return self.future().chunk(chunks, uneven=uneven)

    def slice(self, start: int | None = None, end: int | None = None) -> DataProtoFuture:
        """Return rows `start` to `end`, without fetching."""
        return self.future().slice(start, end)

    def materialize(self, columns: Iterable[str] | None = None, timeout: float | None = None) -> DataProto:
        """Fetch the batch, or some of its columns.

        Raises:
            RemoteError: it was freed.
            MissingKeyError: there is no such column.
        """
        self._check()
        if columns is None:
            return self.future().get(timeout)  # type: ignore[no-any-return]
        names = [columns] if isinstance(columns, str) else list(columns)
        _check_names(names, self.columns)
        return self.future().select(names).get(timeout)  # type: ignore[no-any-return]

    def free(self) -> None:
        """Drop the stored columns; a second time does nothing. Whatever still refers to them cannot fetch any more."""
        if not self._freed:
            self._freed = True
            self._store.free([*(self._part.columns or {}).values(), self._part.payload])

    def _check(self) -> None:
        if self._freed:
            raise RemoteError("this RemoteBatch was freed; stage the batch again")

    def __repr__(self) -> str:
        return f"RemoteBatch: {len(self)} rows, columns {self.columns}" + ", freed" * self._freed


def _check_names(names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise MissingKeyError(f"there is no column {name!r}; the remote batch has {sorted(known)}")
