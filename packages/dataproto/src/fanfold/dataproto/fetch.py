"""What must be fetched for some rows of an expression over parts, and the result made of it.

Pure: headers are read and payloads are fetched by the caller. Letters: `B` rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tensordict import TensorDictBase

from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.errors import ColumnTypeError, MergeError, MissingKeyError
from fanfold.dataproto.parts import (
    Below,
    Beside,
    Columns,
    Cut,
    Leaf,
    Node,
    Part,
    Picked,
    ReadHeader,
    Share,
    column_names,
    columns_of,
    rows_of,
    select_columns,
)
from fanfold.dataproto.table import with_common_offsets
from fanfold.dataproto.tensordicts import concat_tensordict


@dataclass(frozen=True)
class Take:
    """Rows first to last of one part (None: all), some of its columns (None: all)."""

    part: Part
    first: int | None
    last: int | None
    names: tuple[str, ...] | None
    lenient: bool = False

    def handles(self) -> list[Any]:
        """What must be fetched."""
        if self.part.columns is None:
            return [self.part.payload]
        apart, others = self.named()
        if others and not self.lenient and self.part.rest is None:
            raise MissingKeyError(f"there is no column {others[0]!r}; the producer stored {sorted(self.part.columns)}")
        takes_rest = self.part.rest is not None and (self.names is None or bool(others))
        return [self.part.payload, *[self.part.rest] * takes_rest, *(self.part.columns[name] for name in apart)]

    def named(self) -> tuple[list[str], list[str]]:
        """Which columns are wanted: those that are stored apart, and others."""
        known = self.part.columns or {}
        names = tuple(known) if self.names is None else self.names
        return [name for name in names if name in known], [name for name in names if name not in known]


@dataclass(frozen=True)
class Join:
    """Values below (or beside) each other; their rows in another order where `order` says so."""

    items: tuple["Wanted", ...]
    beside: bool = False
    order: tuple[int, ...] | None = None


Wanted: TypeAlias = Take | Join

_LEFT = -1  # the position of a rest that is not fetched, for no name is in it


@dataclass(frozen=True)
class Assembly:
    """Makes rows of values that were fetched elsewhere; it can be pickled, and refers to nothing that is stored.

    Args:
        wanted: what is made, with positions in the list of values in the places of handles
    """

    wanted: Wanted

    def __call__(self, values: Sequence[Any]) -> Any:
        """Cut and join values, which stand in the order of the handles that this was made with."""
        return assemble(self.wanted, dict(enumerate(values)))


def detached(wanted: Wanted) -> tuple[list[Any], Assembly]:
    """Return the handles to fetch, each once, and what makes the result of their values in any process."""
    handles = list(dict.fromkeys(handles_of(wanted)))
    return handles, Assembly(_by_position(wanted, {handle: place for place, handle in enumerate(handles)}))


def _by_position(wanted: Wanted, place: Mapping[Any, int]) -> Wanted:
    if isinstance(wanted, Join):
        return replace(wanted, items=tuple(_by_position(item, place) for item in wanted.items))
    columns = wanted.part.columns
    used = None if columns is None else {name: place[columns[name]] for name in columns if columns[name] in place}
    rest = None if wanted.part.rest is None else place.get(wanted.part.rest, _LEFT)
    return replace(wanted, part=Part(None, place[wanted.part.payload], used, rest))


def plan(node: Node, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader) -> Wanted:
    """Return what must be fetched for some rows (None: all) and columns (None: all) of an expression."""
    if isinstance(node, Leaf):
        return _take(node.part, bounds, names, read)
    if isinstance(node, Cut):
        return _plan_cut(node, bounds, names, read)
    if isinstance(node, Columns):
        missing = [name for name in names or () if name not in node.names]
        if missing:
            raise MissingKeyError(f"there is no column {missing[0]!r}; {sorted(node.names)} were selected before")
        chosen = node.names if names is None else names
        if node.lenient and isinstance(node.node, Beside):
            chosen = tuple(name for name in chosen if name in columns_of(node.node, read))
        found = plan(node.node, bounds, chosen, read)
        return _lenient(found) if node.lenient else found
    if isinstance(node, Beside):
        return _plan_beside(node, bounds, names, read)
    if isinstance(node, Picked):
        return _plan_picked(node, bounds, names, read)
    return _plan_below(node, bounds, names, read)


def _plan_cut(node: Cut, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader) -> Wanted:
    straight = node.cut.straight(node.node) if isinstance(node.cut, Share) and bounds is None else None
    if straight is not None:
        return plan(straight, None, names, read)
    first, last = node.cut.bounds(rows_of(node.node, read))
    return plan(node.node, _inside((first, last), bounds), names, read)


def _lenient(wanted: Wanted) -> Wanted:
    if isinstance(wanted, Join):
        return replace(wanted, items=tuple(map(_lenient, wanted.items)))
    return replace(wanted, lenient=True)


def _take(part: Part, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader) -> Take:
    if bounds is None or (bounds[0] == 0 and bounds[1] == read(part).rows):
        return Take(part, None, None, names)
    return Take(part, *bounds, names)


def _inside(outer: tuple[int, int], bounds: tuple[int, int] | None) -> tuple[int, int]:
    return outer if bounds is None else (outer[0] + bounds[0], outer[0] + bounds[1])


def _plan_beside(
    node: Beside, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader
) -> Wanted:
    rows_of(node, read)
    if names is None:
        return Join(tuple(plan(child, bounds, None, read) for child in node.nodes), beside=True)
    items, left = [], list(names)
    for child in node.nodes:
        mine = tuple(name for name in left if name in columns_of(child, read))
        left = [name for name in left if name not in mine]
        if mine:
            items.append(plan(child, bounds, mine, read))
    if left or not items:
        raise MissingKeyError(f"there is no column {left[:1]}; there are {sorted(columns_of(node, read))}")
    return Join(tuple(items), beside=True)


def _plan_below(node: Below, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader) -> Wanted:
    if bounds is None:
        return Join(tuple(plan(child, None, names, read) for child in node.nodes))
    items, start = [], 0
    for child in node.nodes:
        rows = rows_of(child, read)
        first, last = max(bounds[0] - start, 0), min(bounds[1] - start, rows)
        if first < last:
            items.append(plan(child, None if (first, last) == (0, rows) else (first, last), names, read))
        start += rows
    # No rows still have columns: one part must say which.
    return Join(tuple(items)) if items else plan(node.nodes[0], (0, 0), names, read)


def _plan_picked(
    node: Picked, bounds: tuple[int, int] | None, names: tuple[str, ...] | None, read: ReadHeader
) -> Wanted:
    rows_of(node, read)
    wanted = node.indices if bounds is None else node.indices[slice(*bounds)]
    if not wanted:
        return plan(node.node, (0, 0), names, read)
    children = node.node.nodes if isinstance(node.node, Below) else (node.node,)
    items, place, start, made = list[Wanted](), dict[int, int](), 0, 0
    for child in children:
        rows = rows_of(child, read)
        mine = [index - start for index in wanted if start <= index < start + rows]
        if mine:
            # From the first row to the last: views. What lies between and is another's is left out below.
            first, last = min(mine), max(mine) + 1
            items.append(plan(child, None if (first, last) == (0, rows) else (first, last), names, read))
            place.update({start + index: made + index - first for index in mine})
            made += last - first
        start += rows
    return Join(tuple(items), order=tuple(place[index] for index in wanted))


def handles_of(wanted: Wanted) -> Iterator[Any]:
    """Return the handles to fetch; one may come twice."""
    if isinstance(wanted, Take):
        yield from wanted.handles()
    else:
        for item in wanted.items:
            yield from handles_of(item)


def assemble(wanted: Wanted, values: Mapping[Any, Any]) -> Any:
    """Make the result of fetched values by handle."""
    if isinstance(wanted, Take):
        return _cut_value(wanted, values)
    made = [assemble(item, values) for item in wanted.items]
    if len(made) > 1:
        made = [_joined_beside(made) if wanted.beside else _joined_below(made)]
    return made[0] if wanted.order is None else _picked(made[0], wanted.order)


def _picked(value: Any, order: Sequence[int]) -> Any:
    return value.select_idxs(list(order)) if isinstance(value, DataProto) else value[list(order)]


def _cut_value(wanted: Take, values: Mapping[Any, Any]) -> Any:
    found = values[wanted.part.payload]
    if wanted.part.columns is not None:
        found = _put_beside(wanted, found, [values[handle] for handle in wanted.handles()[1:]])
    elif wanted.names is not None:
        found = _selected(found, _present(found, wanted) if wanted.lenient else wanted.names)
    return found if wanted.first is None else found[wanted.first : wanted.last]


def _put_beside(wanted: Take, frame: Any, values: list[Any]) -> Any:
    apart, others = wanted.named()
    rest = values.pop(0) if len(values) > len(apart) else None
    if rest is not None and wanted.names is not None:
        rest = _selected(rest, [name for name in others if not wanted.lenient or name in _names_of(rest)])
    absent = [name for name, value in zip(apart, values, strict=True) if value is None]
    there = [value for value in (rest, *values) if value is not None]
    if absent and wanted.names is not None and (not wanted.lenient or not any(map(_names_of, there))):
        raise MissingKeyError(f"there is no column {absent[0]!r}, which was to be stored apart")
    return _joined_beside([frame, *there]) if there or isinstance(frame, DataProto) else frame


def _names_of(value: Any) -> Sequence[str]:
    return list(value.keys()) if isinstance(value, TensorDictBase) else column_names(value)


def _present(value: Any, wanted: Take) -> Sequence[str]:
    names, known = wanted.names or (), _names_of(value)
    present = [name for name in names if name in known]
    if names and not present:
        raise MissingKeyError(f"there is none of the columns {sorted(names)}; there are {sorted(known)}")
    return present


def _selected(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, DataProto):
        return select_columns(value, names)
    if isinstance(value, TensorDictBase):
        missing = sorted(set(names) - set(value.keys()))
        if missing:
            raise MissingKeyError(f"there is no column {missing[0]!r}; there are {sorted(value.keys())}")
        return value.select(*names)
    raise ColumnTypeError(
        f"columns {list(names)} were selected of a {type(value).__name__}; expected a DataProto or TensorDict"
    )


def _joined_beside(made: list[Any]) -> Any:
    result = made[0].select()
    for other in made[1:]:
        result = result.union(other)
    tensors = result._tensors()
    if tensors is not None:
        result._table, result._td = with_common_offsets(tensors), None
    return result


def _joined_below(made: list[Any]) -> Any:
    kinds = {type(value) for value in made}
    if len(kinds) > 1:
        raise MergeError(
            f"parts of the types {sorted(kind.__name__ for kind in kinds)} cannot be put below each other; expected one"
        )
    if isinstance(made[0], TensorDictBase):
        return concat_tensordict(made)
    if not callable(getattr(made[0], "concat", None)):
        raise MergeError(f"parts of the type {type(made[0]).__name__} cannot be put below each other; it has no concat")
    return type(made[0]).concat(made)
