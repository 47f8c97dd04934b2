"""Marks: how one argument travels. On a parameter by `Annotated[Batch, Shard]`, or around a value at the call.

A mark at the call wins over the one on the parameter, which wins over what the method's mode does by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar, overload

from fanfold.dispatch.errors import ArgumentError
from fanfold.dispatch.split import even_cut

T = TypeVar("T")

_NOTHING: Any = object()


class Mark:
    """What Shard, Replicate and PerRank have in common: an optional value, present only at a call."""

    __slots__ = ("value",)

    def __init__(self, value: Any = _NOTHING) -> None:
        self.value = value

    @property
    def has_value(self) -> bool:
        """True at a call, false on a parameter."""
        return self.value is not _NOTHING

    def __repr__(self) -> str:
        held = f"<{type(self.value).__name__}>" if self.has_value else ""
        return f"{type(self).__name__}({held})"

    def __reduce__(self) -> NoReturn:
        # A mark that reaches a worker was put where planning does not look, so its wish would be ignored.
        raise ArgumentError(
            f"{self!r} was left inside another value; mark the whole argument, or a batch inside a Shard(...) container"
        )


class Shard(Mark):
    """Divide by rows along an axis: `Annotated[Batch, Shard]`, `Annotated[Batch, Shard("ep")]`, `Shard(batch)`, `Shard(batch, "ep")`.

    In a marked tuple, list, dict or dataclass every batch is divided and everything else goes whole.

    Args:
        value: at the call, the batch or container; on a parameter, the axis may stand in its place.
        axis: a mesh axis; the mode's own axis if not given.
        weights: a column name, a function of the batch or one number per row: rows are dealt out so that each rank
            carries nearly the same total; collected results are back in the caller's order.
    """

    __slots__ = ("axis", "weights")

    def __init__(
        self,
        value: Any = _NOTHING,
        axis: str | None = None,
        *,
        weights: str | Sequence[float] | Callable[[Any], Sequence[float]] | None = None,
    ) -> None:
        if isinstance(value, str):
            value, axis = _NOTHING, value
        super().__init__(value)
        self.axis = axis
        self.weights = weights


class Replicate(Mark):
    """Send whole to every rank: `Annotated[Batch, Replicate]` or `Replicate(x)`."""

    __slots__ = ()


class PerRank(Mark):
    """Item i goes to the i-th rank of the call: `Annotated[list[int], PerRank]` or `PerRank([...])`."""

    __slots__ = ()


class Rows(Sequence[T]):
    """A plain sequence as a batch: `Rows([...])` is divided by rows where a list would go whole.

    The worker receives a Rows; Rows that come back are put together again.
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
        offsets = even_cut(len(self), chunks).offsets
        return [self[start:stop] for start, stop in zip(offsets, offsets[1:], strict=False)]

    @staticmethod
    def concat(batches: Iterable[Rows[T]]) -> Rows[T]:
        """All rows in order."""
        return Rows(row for batch in batches for row in batch)
