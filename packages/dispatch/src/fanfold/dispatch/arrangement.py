"""Arrangement: which rank gets what, as a value. It is the first half of a CallPlan; the other half is about results.

Letters: A arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fanfold.dispatch.nested import with_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.dispatch.batches import BatchType
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
        place = self.place
        return (
            list(self.pieces)
            if place is None
            else [self.pieces[index] for index in sorted({place[rank] for rank in ranks})]
        )


@dataclass(frozen=True)
class Arrangement:
    """Who gets what. No method changes anything, of the arrangement or of the caller's.

    Attributes:
        label: class and method, for messages.
        ranks: the ranks that run the method.
        sources: the caller's own objects, from which pieces are taken.
        positional: how each positional argument travels.
        keyword: how each keyword argument travels.
        divisions: axis -> how rows are cut along it.
        batch_type: the type of the first divided argument; it knows how a result that is not here yet looks.
    """

    label: str
    ranks: tuple[int, ...]
    sources: tuple[Any, ...]
    positional: tuple[Spread, ...]
    keyword: dict[str, Spread]
    divisions: dict[str, Division]
    batch_type: BatchType | None

    def call_for(self, rank: int) -> tuple[tuple[Piece, ...], dict[str, Piece]]:
        """The pieces of one rank: positional, and by keyword."""
        positional = tuple([spread.piece(rank) for spread in self.positional])
        return positional, {name: spread.piece(rank) for name, spread in self.keyword.items()}

    def arguments(self, rank: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The values of one rank, for executors that place nothing."""
        positional, keyword = self.call_for(rank)
        return tuple(map(self.value, positional)), {name: self.value(piece) for name, piece in keyword.items()}

    def pieces(self) -> tuple[Piece, ...]:
        """The distinct pieces of the ranks that run; a backend places each once, however many ranks read it."""
        return tuple(dict.fromkeys(piece for spread in self.spreads() for piece in spread.used(self.ranks)))

    def spreads(self) -> tuple[Spread, ...]:
        """[A] how each argument travels."""
        return (*self.positional, *self.keyword.values())

    def value(self, piece: Piece) -> Any:
        """The caller's own object, its rows, or its item."""
        source = self.sources[piece.source]
        if piece.kind == "item":
            return source[piece.item]
        if piece.kind == "whole" and piece.columns is None:
            return source
        return with_batches(source, lambda batch, batch_type: self._part(piece, batch, batch_type))

    def rows_of(self, piece: Piece) -> Sequence[int]:
        """The numbers of the caller's rows in a piece of kind "rows", in order, padding not counted."""
        assert piece.start is not None
        assert piece.stop is not None
        order = self.divisions[str(piece.axis)].order
        return range(piece.start, piece.stop) if order is None else order[piece.start : piece.stop]

    def _part(self, piece: Piece, batch: Any, batch_type: BatchType) -> Any:
        if piece.columns is not None:
            batch = batch_type.narrowed(batch, piece.columns)
        if piece.part is not None and batch_type.part is not None:
            return batch_type.part(batch, *piece.part)
        if piece.start is None or piece.stop is None:
            return batch
        rows = self.rows_of(piece)
        if not piece.padding and isinstance(rows, range):
            return batch_type.rows(batch, piece.start, piece.stop)
        # Padding repeats a real row, to be of the right kind in every column; a run without rows takes the last.
        last = rows[-1] if rows else batch_type.length(batch) - 1
        return batch_type.pick(batch, [*rows, *[last] * piece.padding])
