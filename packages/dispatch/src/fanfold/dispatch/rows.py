"""Rows: a plain sequence as a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, overload

from fanfold.dispatch.cut import even_cut

T = TypeVar("T")


class Rows(Sequence[T]):
    """`Rows([...])` is divided by rows where a list would go whole.

    The worker receives a Rows, which is a sequence; Rows that come back are put together again.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Rows[T]: ...
    def __getitem__(self, index: int | slice) -> T | Rows[T]:
        return Rows(self._items[index]) if isinstance(index, slice) else self._items[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, Rows) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"Rows({list(self._items)!r})"

    def chunk(self, chunks: int) -> list[Rows[T]]:
        """The rows in `chunks` runs whose lengths differ by at most one."""
        return [self[start:stop] for start, stop in even_cut(len(self), chunks).runs()]

    @staticmethod
    def concat(batches: Iterable[Rows[T]]) -> Rows[T]:
        """All rows in order."""
        return Rows(row for batch in batches for row in batch)
