"""CallPlan: one call as a value. Which rank gets what, which results come back, what happens to them.

Letters: W ranks of the group, D data-parallel size, B rows, A arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.dispatch.collect import collected_value
from fanfold.dispatch.explain import plan_data, plan_table
from fanfold.dispatch.nested import with_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.dispatch.batches import BatchType
    from fanfold.dispatch.mesh import Mesh
    from fanfold.dispatch.split import Cut


class Piece(NamedTuple):
    """What one rank gets for one argument; equal pieces are the same data.

    Attributes:
        source: index into the plan's sources.
        start: first row; None when the source is not divided by rows.
        stop: row after the last.
        padding: rows added at the end to reach the common length.
        item: index into the source, a list with one entry per rank.
        columns: the only columns that travel; None for all.
        axis: the mesh axis whose cut the rows belong to.
    """

    source: int
    start: int | None = None
    stop: int | None = None
    padding: int = 0
    item: int | None = None
    columns: tuple[str, ...] | None = None
    axis: str | None = None

    @property
    def kind(self) -> str:
        """ "rows", "item" or "whole"."""
        if self.start is not None:
            return "rows"
        return "whole" if self.item is None else "item"


class Spread(NamedTuple):
    """How one argument travels: its distinct pieces, and which of them each rank gets.

    Attributes:
        name: the parameter.
        pieces: the distinct pieces.
        place: rank -> index into `pieces`; None when all ranks get the only one.
    """

    name: str
    pieces: tuple[Piece, ...]
    place: Mapping[int, int] | None = None

    def piece(self, rank: int) -> Piece:
        """What `rank` gets."""
        return self.pieces[0 if self.place is None else self.place[rank]]


class Division(NamedTuple):
    """Rows cut along one axis.

    Attributes:
        cut: the D runs of rows.
        place: rank -> run.
    """

    cut: Cut
    place: Mapping[int, int]


@dataclass(frozen=True)
class CallPlan:
    """One call, decided but not yet made; nothing of the caller's is changed by any of its methods.

    Attributes:
        method: the method's name.
        label: class and method, for messages.
        world_size: W of the whole group.
        ranks: the ranks that run the method.
        collected: the ranks whose results are needed, in collect order.
        sources: the caller's own objects that pieces are taken from.
        positional: how each positional argument travels.
        keyword: how each keyword argument travels.
        mesh: where the ranks sit; the results' rows belong to its divided axis.
        divisions: by axis, how rows are cut.
        collecting: "single": the value of the only rank; "list"; "join"; or a function of the outputs in collect order.
        merge: the method's merge rules.
        batch_type: the type of the first divided argument; it knows how a result that is not here yet is represented.
    """

    method: str
    label: str
    world_size: int
    ranks: tuple[int, ...]
    collected: tuple[int, ...]
    sources: tuple[Any, ...]
    positional: tuple[Spread, ...]
    keyword: dict[str, Spread]
    mesh: Mesh
    divisions: dict[str, Division] = field(default_factory=dict)
    collecting: str | Callable[[Sequence[Any]], Any] = "list"
    merge: Any = None
    batch_type: BatchType | None = None

    def call_for(self, rank: int) -> tuple[tuple[Piece, ...], dict[str, Piece]]:
        """The pieces of one rank: positional, and by keyword."""
        return (
            tuple(spread.piece(rank) for spread in self.positional),
            {name: spread.piece(rank) for name, spread in self.keyword.items()},
        )

    def pieces(self) -> tuple[Piece, ...]:
        """The distinct pieces that some rank of the call gets: a backend places each of them once."""
        return tuple(dict.fromkeys(piece for spread in self.spreads() for piece in spread.pieces))

    def spreads(self) -> tuple[Spread, ...]:
        """[A] how each argument travels."""
        return (*self.positional, *self.keyword.values())

    def value(self, piece: Piece) -> Any:
        """The caller's own object, its rows, or its item; never a changed object."""
        source = self.sources[piece.source]
        if piece.item is not None:
            return source[piece.item]
        if piece.start is None and piece.columns is None:
            return source
        return with_batches(source, lambda batch, batch_type: self._part(piece, batch, batch_type))

    def arguments(self, rank: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The values of one rank, for executors that need no placement."""
        positional, keyword = self.call_for(rank)
        return tuple(map(self.value, positional)), {name: self.value(piece) for name, piece in keyword.items()}

    def padding(self, rank: int) -> int:
        """How many rows at the end of this rank's batches are padding."""
        division = self.divisions.get(self.mesh.shard)
        return 0 if division is None else division.cut.padding[division.place[rank]]

    def rows(self, rank: int) -> int | None:
        """How many of the caller's rows this rank gets, padding not counted; None when nothing is divided."""
        division = self.divisions.get(self.mesh.shard)
        if division is None:
            return None
        run = division.place[rank]
        return division.cut.offsets[run + 1] - division.cut.offsets[run]

    def rows_of(self, piece: Piece) -> Sequence[int]:
        """The caller's row numbers in a piece of kind "rows", in order, padding not counted."""
        assert piece.start is not None
        assert piece.stop is not None
        order = self.divisions[str(piece.axis)].cut.order
        return range(piece.start, piece.stop) if order is None else order[piece.start : piece.stop]

    def collect(self, results: Mapping[int, Any]) -> Any:
        """The value of the call.

        Args:
            results: what each rank of `collected` returned, by rank; others are ignored.

        Raises:
            CollectError: a rank is missing, or rows would be lost or invented; it holds the results.
        """
        return collected_value(self, results)

    def explain(self) -> str:
        """The plan as a table: rank, coordinates, what it gets of each argument, padding, bytes, place among the results."""
        return plan_table(self)

    def as_data(self) -> dict[str, Any]:
        """The plan as plain data that JSON can hold."""
        return plan_data(self)

    def _part(self, piece: Piece, batch: Any, batch_type: BatchType) -> Any:
        if piece.columns is not None:
            batch = batch_type.selected(batch, piece.columns)
        if piece.start is None or piece.stop is None:
            return batch
        rows = self.rows_of(piece)
        part = (
            batch_type.rows(batch, piece.start, piece.stop) if isinstance(rows, range) else batch_type.pick(batch, rows)
        )
        if not piece.padding:
            return part
        last = rows[-1] if rows else batch_type.length(batch) - 1
        return batch_type.concat([part] * bool(rows) + [batch_type.rows(batch, last, last + 1)] * piece.padding)
