"""A batch that was put into a store once, column by column. Letters: `B` rows."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

from fanfold.dataproto import parts
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.errors import ColumnTypeError, MissingKeyError, RemoteError
from fanfold.dataproto.fetch import Assembly
from fanfold.dataproto.parts import Header, Leaf, Part
from fanfold.dataproto.remote import DataProtoFuture, PartStore
from fanfold.dataproto.shape import Uneven


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

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store)
        RemoteBatch: 4 rows, columns ['x']
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
        """The names of the columns.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).columns
        ['x']
        """
        return list(self._header.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).nbytes
        32
        """
        return self._header.nbytes

    def future(self) -> DataProtoFuture:
        """Return the same rows as a future, to slice, chunk, join and pass on.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).future()
        DataProtoFuture of 1 parts
        """
        self._check()
        return DataProtoFuture(self._store, Leaf(self._part))

    def select(self, columns: Iterable[str]) -> Self:
        """Return a batch of some of the columns, without fetching.

        Raises:
            MissingKeyError: there is no such column.

        >>> remote = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(2), "y": torch.ones(2)}), store)
        >>> remote.select(["y"])
        RemoteBatch: 2 rows, columns ['y']
        """
        self._check()
        names = [columns] if isinstance(columns, str) else list(columns)
        _check_names(names, self.columns)
        header = self._header._replace(columns=tuple(names))
        stored = self._part.columns or {}
        return type(self)(self._store, Part(header, self._part.payload, {name: stored[name] for name in names}))

    def chunk(self, chunks: int, *, uneven: Uneven | None = None) -> list[DataProtoFuture]:
        """Divide into consecutive pieces, without fetching.

        >>> remote = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store)
        >>> [piece.get()["x"].tolist() for piece in remote.chunk(2)]
        [[0, 1], [2, 3]]
        """
        return self.future().chunk(chunks, uneven=uneven)

    def slice(self, start: int | None = None, end: int | None = None) -> DataProtoFuture:
        """Return rows `start` to `end`, without fetching.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(4)}), store).slice(1, 3).get()["x"]
        tensor([1, 2])
        """
        return self.future().slice(start, end)

    def materialize(self, columns: Iterable[str] | None = None, timeout: float | None = None) -> DataProto:
        """Fetch the batch, or some of its columns.

        Raises:
            RemoteError: it was freed.
            MissingKeyError: there is no such column.

        >>> remote = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(2)}, {"s": ["a", "b"]}), store)
        >>> remote.materialize(["s"])["s"].tolist()
        ['a', 'b']
        """
        self._check()
        if columns is None:
            return self.future().get(timeout)  # type: ignore[no-any-return]
        names = [columns] if isinstance(columns, str) else list(columns)
        _check_names(names, self.columns)
        return self.future().select(names).get(timeout)  # type: ignore[no-any-return]

    def get(self, timeout: float | None = None) -> DataProto:
        """Fetch all of it.

        >>> RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(2)}), store).get()["x"]
        tensor([0, 1])
        """
        return self.materialize(None, timeout)

    result = get

    def deferred(self, timeout: float | None = None) -> tuple[list[Any], Assembly]:
        """Return the handles of what is stored, and what makes the batch of their values: here or elsewhere.

        >>> handles, assembly = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(2)}), store).deferred()
        >>> assembly(store.fetch(handles, None))["x"]
        tensor([0, 1])
        """
        return self.future().deferred(timeout)

    def free(self) -> None:
        """Drop the stored columns; a second time does nothing. Whatever still refers to them cannot fetch any more.

        >>> remote = RemoteBatch.stage(DataProto.from_dict({"x": torch.arange(2)}), store)
        >>> remote.free()
        >>> remote
        RemoteBatch: 2 rows, columns ['x'], freed
        """
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
