"""Batches whose rows are elsewhere or not here yet.

A backend stores values and gives out handles; a `PartStore` is all this module asks of it. A `DataProtoFuture` is an
expression over parts: below each other, beside each other, some rows, some columns. Nothing is fetched and no row
count is assumed until `get`, which fetches the parts that overlap the rows that are asked for, and only those.

Letters: `B` rows.
"""

import importlib
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from fanfold.dataproto import fetch, indexing, parts
from fanfold.dataproto.errors import ColumnTypeError, MergeError, RemoteTimeoutError, RowIndexError
from fanfold.dataproto.parts import Below, Beside, Chunk, Cut, Header, Leaf, Node, Part, Picked, Slice
from fanfold.dataproto.references import References, is_reference, is_staged
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

    In the examples, `store` is a `PartStore` of this process.

    Args:
        store: where the parts are
        node: the expression; see `of`
        call: what produces these rows, with `result(timeout)`, `done()` and `cancel()`, where it was made in this
            process; its result is the value of the expression as it is
    """

    def __init__(self, store: PartStore, node: Node, call: Any = None) -> None:
        self._store, self._node, self._call = store, node, call
        self._calls: tuple[Any, ...] = () if call is None else (call,)
        self._headers: dict[int, Header] = {}

    @classmethod
    def of(cls, store: PartStore, found: Iterable[Part | tuple[Any, Any]], call: Any = None) -> Self:
        """Make a future of parts, or of (header, payload) handles, in the order of their rows.

        Args:
            store: where the parts are
            found: the parts
            call: what produces all of them; `get` asks it instead of the store

        Raises:
            MergeError: no parts.

        >>> batch = DataProto.from_dict({"x": torch.arange(4)})
        >>> DataProtoFuture.of(store, [(header_of(batch), store.put(batch))]).get()["x"]
        tensor([0, 1, 2, 3])
        """
        leaves = [Leaf(part if isinstance(part, Part) else Part(*part)) for part in found]
        if not leaves:
            raise MergeError(
                "a DataProtoFuture of no parts; expected at least one, because only a part knows the columns"
            )
        return cls(store, leaves[0] if len(leaves) == 1 else Below(tuple(leaves), one_call=True), call)

    @staticmethod
    def concat(futures: Sequence[Any]) -> "DataProtoFuture":
        """Put futures below each other, without waiting for any of them.

        Args:
            futures: futures and staged batches of one store; or promises of batches, which need no store: each a
                `concurrent.futures.Future`, or a reference of a cluster runtime whose `future()` gives one

        Raises:
            MergeError: no futures, or futures of different stores.
            ColumnTypeError: something else.

        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as pool:
        ...     made = [pool.submit(DataProto.from_dict, {"x": torch.full((2,), rank)}) for rank in range(2)]
        ...     DataProtoFuture.concat(made).slice(1, 3).get()["x"].tolist()
        [0, 1]
        """
        listed = list(futures)
        if listed and all(is_reference(promise) for promise in listed):
            return DataProtoFuture.of(References(), [(promise, promise) for promise in listed])
        found = _futures("concat", listed)
        return found[0]._made(Below(tuple(future._node for future in found)), *found)

    def union(self, *others: Any) -> Self:
        """Put the columns of other futures beside these, without waiting; `get` refuses different numbers of rows.

        >>> one, two = (RemoteBatch.stage(DataProto.from_dict({name: torch.arange(2)}), store) for name in "xy")
        >>> one.future().union(two).columns()
        ['x', 'y']
        """
        found = _futures("union", (self, *others))
        return self._made(Beside(tuple(future._node for future in found)), *found)

    def __or__(self, other: Any) -> Self:
        """Put the columns of another future beside these, as `union` does.

        >>> one, two = (RemoteBatch.stage(DataProto.from_dict({name: torch.arange(2)}), store) for name in "xy")
        >>> (one.future() | two.future()).get().columns
        ['x', 'y']
        """
        return self.union(other)

    def _made(self, node: Node, *sources: "DataProtoFuture") -> Self:
        """Make a future of this class and store that knows the headers its sources have read, and their calls."""
        made = type(self)(self._store, node)
        made._calls = tuple({id(call): call for source in sources for call in source._calls}.values())
        for source in sources:
            made._headers.update(source._headers)
        return made

    def chunk(self, chunks: int, *, uneven: Uneven | None = None) -> list[Self]:
        """Divide into consecutive pieces without waiting; a chunk of a chunk is a piece of that piece.

        Args:
            chunks: the number of pieces
            uneven: "split" gives sizes that differ by one; "error" and None make `get` refuse what does not divide

        Raises:
            SplitError: fewer than one piece.
            ColumnTypeError: `uneven="pad"`, which needs the rows.

        >>> future = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).future()
        >>> future.chunk(2)[1].chunk(2)[0].get()["x"]
        tensor([2])
        """
        count = indexing.at_least("chunks", chunks, 1)
        if uneven not in (None, "split", "error"):
            raise ColumnTypeError(
                f"uneven is {uneven!r}; expected 'split' or 'error', since rows that are not here cannot be padded"
            )
        return [self._cut(Chunk(at, count, uneven == "split")) for at in range(count)]

    def slice(self, start: int | None = None, end: int | None = None) -> Self:
        """Return rows `start` to `end` without waiting; negative numbers count from the end.

        >>> future = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).future()
        >>> future.slice(-2).get()["x"]
        tensor([2, 3])
        """
        return self._cut(Slice(start, end))

    def __getitem__(self, rows: Any) -> Self:
        if not isinstance(rows, slice) or rows.step not in (None, 1):
            raise ColumnTypeError(
                f"a DataProtoFuture was indexed with {rows!r}; expected a slice of consecutive rows. Use get() first."
            )
        return self.slice(rows.start, rows.stop)

    def select(self, columns: Iterable[str]) -> Self:
        """Keep some columns; where the producer stored columns apart, only these are fetched.

        >>> future = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(2), "y": torch.ones(2)}), store).future()
        >>> list(future.select(["y"]).get().batch.keys())
        ['y']
        """
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        return self._made(parts.Columns(self._node, names), self)

    def select_idxs(self, indices: Sequence[int]) -> Self:
        """Return rows in any order without waiting: row `indices[k]` is the k-th.

        Rows that are not there are refused once they are counted, by `rows` or `get`.

        Raises:
            RowIndexError: a negative index; how many rows there are is not known yet.

        >>> future = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).future()
        >>> future.select_idxs([3, 1, 0]).slice(1).get()["x"]
        tensor([1, 0])
        """
        picked = tuple(int(index) for index in indices)
        if picked and min(picked) < 0:
            raise RowIndexError(f"select_idxs got the index {min(picked)}; expected rows counted from the first")
        return self._cut(Picked(self._node, picked))

    def _cut(self, cut: Slice | Chunk | Picked) -> Self:
        made = self._made(cut if isinstance(cut, Picked) else Cut(self._node, cut), self)
        made._headers = self._headers  # the same parts: whichever piece reads a header first, reads it for all
        return made

    def rows(self, timeout: float | None = None) -> int:
        """Return B, waiting for the headers of the parts, not for their rows.

        Raises:
            RemoteTimeoutError: a header did not arrive in time.
            SplitError: a chunk that does not divide.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).slice(1).rows()
        3
        """
        return parts.rows_of(self._node, self._header_reader(_Limit(timeout)))

    def __len__(self) -> int:
        return self.rows()

    def columns(self, timeout: float | None = None) -> list[str]:
        """Return the names of the columns, waiting for headers only.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(2)}, {"s": ["a", "b"]}), store).future().columns()
        ['x', 's']
        """
        return parts.columns_of(self._node, self._header_reader(_Limit(timeout)))

    def headers(self, timeout: float | None = None) -> list[Header]:
        """Return the headers of all parts, in the order of the expression.

        >>> future = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).future()
        >>> [(header.rows, header.columns, header.nbytes) for header in future.headers()]
        [(4, ('x',), 32)]
        """
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

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).future().get(timeout=60)["x"]
        tensor([0, 1, 2, 3])
        """
        if self._call is not None:
            return self._call.result(timeout)
        limit = _Limit(timeout)
        handles, assembly = self.deferred(limit.left())
        return assembly(self._store.fetch(handles, limit.left()) if handles else [])

    def result(self, timeout: float | None = None) -> Any:
        """Do the same as `get`.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).slice(3).result()["x"]
        tensor([3])
        """
        return self.get(timeout)

    def done(self) -> bool:
        """Say whether everything that produces these rows has ended, well or not; never waits.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).future().done()
        True
        """
        return all(call.done() for call in self._calls)

    def cancel(self) -> list[Any]:
        """Give up on everything that produces these rows; returns what each call says of it.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).future().cancel()
        []
        """
        return [call.cancel() for call in self._calls]

    def __await__(self) -> Generator[Any, None, Any]:
        if self._call is not None:
            return self._call.__await__()  # type: ignore[no-any-return]
        # At first use: only programs that await have a loop, and they have imported it.
        return importlib.import_module("asyncio").to_thread(self.get).__await__()  # type: ignore[no-any-return]

    def deferred(self, timeout: float | None = None) -> tuple[list[Any], fetch.Assembly]:
        """Return the handles that must be fetched, and what makes these rows of their values: here or elsewhere.

        Fetches nothing, and waits for headers only where rows have to be counted.

        Args:
            timeout: seconds for the headers together; None leaves the limit to the store

        Raises:
            RemoteTimeoutError: a header did not arrive in time.
            MissingKeyError: a selected column that was not stored.

        >>> remote = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4), "y": torch.ones(4)}), store)
        >>> handles, assembly = remote.future().select(["x"]).slice(2).deferred()
        >>> len(handles), assembly(store.fetch(handles, None))["x"].tolist()
        (2, [2, 3])
        """
        return fetch.detached(fetch.plan(self._node, None, None, self._header_reader(_Limit(timeout))))

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
    listed = [entry.future() if is_staged(entry) else entry for entry in listed]
    for position, future in enumerate(listed):
        if not isinstance(future, DataProtoFuture):
            raise ColumnTypeError(
                f"{what}: entry {position} is a {type(future).__name__}; expected a DataProtoFuture or a RemoteBatch"
            )
        if future._store is not listed[0]._store and future._store != listed[0]._store:
            raise MergeError(f"{what}: entry {position} belongs to another store than entry 0; expected one")
    return listed
