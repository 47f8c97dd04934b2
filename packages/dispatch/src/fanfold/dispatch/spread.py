"""Spread arguments over ranks: each becomes pieces of the caller's own objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch.arrangement import Piece, Spread
from fanfold.dispatch.errors import DivideError
from fanfold.dispatch.lists import is_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.dispatch.divide import Division


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
                Piece(source, start, stop, padding, None, columns, axis)
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
