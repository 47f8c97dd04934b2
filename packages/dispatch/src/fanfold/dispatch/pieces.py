"""Pieces: what a rank gets for one argument, as a value that points into the caller's own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fanfold.dispatch.errors import DivideError
from fanfold.dispatch.lists import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.dispatch.divide import Division


class Piece(NamedTuple):
    """What a rank gets for one argument; equal pieces of one plan are the same data.

    Attributes:
        source: index into the plan's sources.
        start: first row; None when the source is not cut.
        stop: the row after the last.
        padding: rows added at the end to reach the common length.
        item: index into the source, which is a list; None when it is not taken apart.
        columns: the only columns that travel; None for all.
        axis: the mesh axis along which the rows are cut.
        part: (k, n) for part k of n, where nobody counts the rows: they are not here yet.
    """

    source: int
    start: int | None = None
    stop: int | None = None
    padding: int = 0
    item: int | None = None
    columns: tuple[str, ...] | None = None
    axis: str | None = None
    part: tuple[int, int] | None = None

    @property
    def kind(self) -> Literal["whole", "rows", "part", "item"]:
        """What of the source it is."""
        if self.start is not None:
            return "rows"
        if self.part is not None:
            return "part"
        return "whole" if self.item is None else "item"


class Spread(NamedTuple):
    """How one argument travels.

    Attributes:
        name: the parameter.
        pieces: the distinct pieces.
        place: rank -> index into `pieces`; None when every rank gets the only one.
    """

    name: str
    pieces: tuple[Piece, ...]
    place: Mapping[int, int] | None = None

    def piece(self, rank: int) -> Piece:
        """What one rank gets."""
        return self.pieces[0 if self.place is None else self.place[rank]]

    def used(self, ranks: Sequence[int]) -> list[Piece]:
        """The distinct pieces that some of `ranks` gets."""
        if self.place is None:
            return list(self.pieces)
        return [self.pieces[index] for index in sorted({self.place[rank] for rank in ranks})]


class Spreader:
    """Makes the spreads of one call, and remembers the objects that their pieces are taken from."""

    def __init__(self, label: str, ranks: Sequence[int]) -> None:
        self.label = label
        self.sources: list[Any] = []
        self._index_of: dict[int, int] = {}
        self._ranks = tuple(ranks)

    def whole(self, name: str, value: Any, columns: tuple[str, ...] | None = None) -> Spread:
        """Every rank gets the same object."""
        return Spread(name, (Piece(self._source(value), columns=columns),))

    def rows(
        self, name: str, value: Any, axis: str, division: Division, columns: tuple[str, ...] | None = None
    ) -> Spread:
        """Every rank gets the rows of its place along an axis."""
        source, cut, places = self._source(value), division.cut, division.places
        if cut is None:
            pieces = [Piece(source, columns=columns, axis=axis, part=(place, places)) for place in range(places)]
        else:
            pieces = [
                Piece(source, start, stop, padding, columns=columns, axis=axis)
                for (start, stop), padding in zip(cut.runs(), cut.padding, strict=True)
            ]
        return Spread(name, tuple(pieces), division.place)

    def items(self, name: str, items: Any) -> Spread:
        """The i-th rank gets item i; one object that stands at several ranks is one piece.

        Raises:
            DivideError: not a list with one item per rank of the call.
        """
        if not is_list(items) or len(items) != len(self._ranks):
            got = f"a {type(items).__name__} of {len(items)}" if is_list(items) else type(items).__name__
            raise DivideError(
                f"{self.label}: argument {name!r} has one item per rank; got {got}, expected a list of "
                f"{len(self._ranks)} (the ranks of this call); send it whole with Replicate(x)"
            )
        source, pieces, index_of = self._source(items), list[Piece](), dict[int, int]()
        for position, item in enumerate(items):
            if index_of.setdefault(id(item), len(pieces)) == len(pieces):
                pieces.append(Piece(source, item=position))
        return Spread(
            name, tuple(pieces), {rank: index_of[id(item)] for rank, item in zip(self._ranks, items, strict=True)}
        )

    def _source(self, value: Any) -> int:
        index = self._index_of.setdefault(id(value), len(self.sources))
        if index == len(self.sources):
            self.sources.append(value)  # held here, the object keeps its id to itself
        return index
