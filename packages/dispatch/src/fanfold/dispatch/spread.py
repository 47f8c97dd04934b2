"""Spread the arguments of one call over ranks: whole, item by item, or by rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.dispatch.batches import batch_type_of
from fanfold.dispatch.errors import ArgumentError, DivideError
from fanfold.dispatch.marks import PerRank, Shard
from fanfold.dispatch.nested import batches_in
from fanfold.dispatch.plan import Division, Piece, Spread
from fanfold.dispatch.split import Cut, balanced_cut, even_cut, padded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.dispatch.batches import BatchType
    from fanfold.dispatch.binding import Argument, BoundCall
    from fanfold.dispatch.mesh import Mesh
    from fanfold.dispatch.rules import DispatchRule
    from fanfold.dispatch.spec import MethodSpec, Uneven


class Divided(NamedTuple):
    """An argument that is cut by rows.

    Attributes:
        name: the parameter.
        axis: the mesh axis it is cut along.
        weights: what the mark says about balance.
        batches: every batch in it: path, batch, type.
    """

    name: str
    axis: str
    weights: Any
    batches: list[tuple[str, Any, BatchType]]


class Spreading:
    """The arguments of one call on their way to a plan."""

    def __init__(
        self, label: str, mesh: Mesh, called: tuple[int, ...], spec: MethodSpec, uneven: Uneven | None
    ) -> None:
        self.label = label
        self.mesh = mesh
        self.called = called
        self.spec = spec
        self.uneven = uneven
        self.sources: list[Any] = []
        self.divisions: dict[str, Division] = {}
        self.batch_type: BatchType | None = None
        self._source_of: dict[int, int] = {}
        self._position = {rank: position for position, rank in enumerate(called)}

    def by_rule(self, rule: DispatchRule, call: BoundCall) -> tuple[tuple[Spread, ...], dict[str, Spread]]:
        """Spread by marks, and by the rule what carries none."""
        if rule.function_first:
            self._check_function_first(call)
        unmarked = self._unmarked_lists(rule, call)
        divided = {argument.name: self._divided(argument) for argument in call if self._is_divided(argument, rule)}
        self._cut(list(divided.values()))

        def spread(argument: Argument) -> Spread:
            if argument.name in divided:
                return self._rows(argument, divided[argument.name])
            per_rank = isinstance(argument.mark, PerRank) or (unmarked and argument.mark is None)
            return self._items(argument.name, argument.value) if per_rank else self._whole(argument)

        return tuple(map(spread, call.positional)), {name: spread(argument) for name, argument in call.keyword.items()}

    def custom(
        self, positional: Sequence[Sequence[Any]], keyword: Mapping[str, Sequence[Any]]
    ) -> tuple[tuple[Spread, ...], dict[str, Spread]]:
        """Spread what a custom dispatch function returned; one object given to several ranks is one piece."""
        return (
            tuple(self._entries(f"[{index}]", entries) for index, entries in enumerate(positional)),
            {name: self._entries(name, entries) for name, entries in keyword.items()},
        )

    def with_rows(self, called: tuple[int, ...]) -> tuple[int, ...]:
        """The ranks that run: all that are called, or under "skip" those that have rows (the first run always has a taker)."""
        division = self.divisions.get(self.mesh.shard)
        if division is None or (self.uneven or self.spec.uneven) != "skip":
            return called
        offsets, place = division.cut.offsets, division.place
        return tuple(rank for rank in called if place[rank] == 0 or offsets[place[rank] + 1] > offsets[place[rank]])

    def _is_divided(self, argument: Argument, rule: DispatchRule) -> bool:
        if argument.mark is None:
            return rule.unmarked == "rows" and batch_type_of(argument.value) is not None
        return isinstance(argument.mark, Shard) and argument.value is not None

    def _divided(self, argument: Argument) -> Divided:
        axis = getattr(argument.mark, "axis", None) or self.mesh.shard
        batches = list(batches_in(argument.value))
        if not batches:
            raise ArgumentError(
                f"{self.label}: argument {argument.name!r} is marked Shard, but {type(argument.value).__name__} is and holds no batch; "
                "wrap a plain list in Rows([...]), or teach its type with register_batch_type"
            )
        return Divided(argument.name, axis, getattr(argument.mark, "weights", None), batches)

    def _cut(self, divided: list[Divided]) -> None:
        for axis in dict.fromkeys(argument.axis for argument in divided):
            along = [argument for argument in divided if argument.axis == axis]
            place, parts = self.mesh.place(axis), self.mesh.size(axis)
            self.divisions[axis] = Division(self._cut_of(along, self._common_length(along), axis, parts), place)
        self.batch_type = divided[0].batches[0][2] if divided else None

    def _common_length(self, along: list[Divided]) -> int:
        lengths = [
            (argument.name + path, batch_type.length(batch))
            for argument in along
            for path, batch, batch_type in argument.batches
        ]
        if len({length for _, length in lengths}) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths)
            raise DivideError(
                f"{self.label}: batches of different length cannot be divided together: {told} rows; send one of them whole with Replicate(...)"
            )
        return lengths[0][1]

    def _cut_of(self, along: list[Divided], rows: int, axis: str, parts: int) -> Cut:
        uneven = self._uneven(along)
        if uneven == "error" and rows % parts:
            raise DivideError(
                f"{self.label}: {rows} rows do not divide into {parts} equal parts along axis {axis!r} of mesh {self.mesh.name!r}; "
                "give a multiple, or register the method with uneven='split' or uneven='pad'"
            )
        weights = self._weights(along, rows)
        cut = even_cut(rows, parts) if weights is None else balanced_cut(weights, parts)
        return padded(cut) if uneven == "pad" and rows else cut

    def _uneven(self, along: list[Divided]) -> Uneven:
        if self.uneven is not None:
            return self.uneven
        asked = any(_wants_padding(batch) for argument in along for _, batch, _ in argument.batches)
        return "pad" if asked else self.spec.uneven

    def _weights(self, along: list[Divided], rows: int) -> list[float] | None:
        given = [(argument, argument.weights) for argument in along if argument.weights is not None]
        argument, weights = given[0] if given else (along[0], self.spec.balance)
        if weights is None:
            return None
        _, batch, batch_type = argument.batches[0]
        if isinstance(weights, str):
            weights = self._column(argument, weights)
        elif callable(weights):
            weights = weights(batch)
        numbers = [float(weight) for weight in (weights.tolist() if hasattr(weights, "tolist") else weights)]
        if len(numbers) != rows:
            raise DivideError(
                f"{self.label}: got {len(numbers)} weights for argument {argument.name!r}, expected one for each of its {rows} rows"
            )
        return numbers

    def _column(self, argument: Divided, column: str) -> Any:
        _, batch, batch_type = argument.batches[0]
        if batch_type.column is None:
            raise DivideError(
                f"{self.label}: weights name column {column!r}, but {batch_type.name} (argument {argument.name!r}) has no columns; give a function of the batch"
            )
        return batch_type.column(batch, column)

    def _rows(self, argument: Argument, divided: Divided) -> Spread:
        division, source, columns = self.divisions[divided.axis], self._source(argument.value), self._columns(argument)
        offsets, padding, _ = division.cut
        pieces = tuple(
            Piece(source, offsets[run], offsets[run + 1], padding[run], None, columns, divided.axis)
            for run in range(len(padding))
        )
        return Spread(argument.name, pieces, division.place)

    def _whole(self, argument: Argument) -> Spread:
        return Spread(argument.name, (Piece(self._source(argument.value), columns=self._columns(argument)),))

    def _items(self, name: str, items: Any) -> Spread:
        if not isinstance(items, (list, tuple)) or len(items) != len(self.called):
            got = (
                f"a {type(items).__name__} of {len(items)}"
                if isinstance(items, (list, tuple))
                else type(items).__name__
            )
            raise DivideError(
                f"{self.label}: argument {name!r} gives one item to each rank: got {got}, expected a list of {len(self.called)} (the ranks called); "
                "send it whole with Replicate(...)"
            )
        return self._entries(name, items)

    def _entries(self, name: str, entries: Sequence[Any]) -> Spread:
        first_at: dict[int, int] = {}
        for position, entry in enumerate(entries):
            first_at.setdefault(id(entry), position)
        source, distinct = self._source(entries), list(first_at.values())
        index_of = {position: index for index, position in enumerate(distinct)}
        place = {rank: index_of[first_at[id(entries[position])]] for rank, position in self._position.items()}
        return Spread(name, tuple(Piece(source, item=position) for position in distinct), place)

    def _columns(self, argument: Argument) -> tuple[str, ...] | None:
        return self.spec.reads if batch_type_of(argument.value) is not None else None

    def _source(self, value: Any) -> int:
        index = self._source_of.setdefault(id(value), len(self.sources))
        if index == len(self.sources):
            self.sources.append(value)  # holding it also keeps its id from being used again
        return index

    def _unmarked_lists(self, rule: DispatchRule, call: BoundCall) -> bool:
        """True when every argument without a mark is a list with one item per rank."""
        unmarked = [argument for argument in call if argument.mark is None]
        if rule.unmarked == "lists":
            return True
        if rule.unmarked != "lists_or_whole":
            return False
        lists = [argument.name for argument in unmarked if isinstance(argument.value, (list, tuple))]
        others = [argument.name for argument in unmarked if not isinstance(argument.value, (list, tuple))]
        if lists and others:
            raise ArgumentError(
                f"{self.label}: arguments {', '.join(lists)} are lists and {', '.join(others)} are not, so it is not clear whether the lists are meant "
                "item by item; say PerRank(...) or Replicate(...) around each list"
            )
        return bool(lists)

    def _check_function_first(self, call: BoundCall) -> None:
        if not call.positional or not callable(call.positional[0].value):
            got = type(call.positional[0].value).__name__ if call.positional else "no positional argument"
            raise ArgumentError(f"{self.label}: got {got}, expected a function as the first positional argument")


def _wants_padding(batch: Any) -> bool:
    """Batches that carry the wish to be padded say so by `is_padding_enabled()`, as verl's do."""
    asks = getattr(batch, "is_padding_enabled", None)
    return bool(callable(asks) and asks())
