"""Arrangement: which rank gets what, as a value. It is the first half of a CallPlan; the other half is about results.

Letters: A arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.nested import with_batches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from fanfold.dispatch.batches import BatchType
    from fanfold.dispatch.divide import Division
    from fanfold.dispatch.pieces import Piece, Spread


@dataclass(frozen=True)
class Arrangement:
    """Who gets what. No method changes anything, of the arrangement or of the caller's.

    Attributes:
        label: class and method, for messages.
        ranks: the ranks that run the method.
        sources: the caller's own objects, from which pieces are taken; none when they were let go.
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
        """The caller's own object, some of its rows, or its item."""
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

    def without_sources(self) -> Self:
        """The same arrangement without the caller's objects, for who keeps it when the arguments have been sent."""
        return replace(self, sources=())

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
