"""A batch that stays where it was stored, column by column, while many calls use it. Letters: `B` rows."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

from fanfold.dataproto import fetch, parts
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.errors import ColumnTypeError, MissingKeyError, RemoteError
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

    def get(self, timeout: float | None = None) -> DataProto:
        """Fetch all of it."""
        return self.materialize(None, timeout)

    result = get

    def deferred(self, timeout: float | None = None) -> tuple[list[Any], fetch.Assembly]:
        """Return the handles of what is stored, and what makes the batch of their values: here or elsewhere."""
        return self.future().deferred(timeout)

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
