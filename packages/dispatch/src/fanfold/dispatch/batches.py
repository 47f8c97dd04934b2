"""Batch types: what dispatch can do with a value that has rows, whatever library it comes from.

A type takes part in one of three ways, looked for in this order: it was registered (`register_batch_type`, also through
the entry points of group `fanfold.batch_types`), there is an adapter for its class name, or it has the shape of
`BatchLike`. Letters: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.adapters import ADAPTERS
from fanfold.dispatch.errors import BatchTypeError
from fanfold.dispatch.split import even_cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ENTRY_POINT_GROUP = "fanfold.batch_types"


@dataclass(frozen=True)
class BatchType:
    """The operations of one batch type; none of them changes the batch it is given.

    Attributes:
        name: the class, for messages.
        length: B of a batch.
        rows: rows a to b as a batch.
        concat: one batch of all rows, in order.
        take: the rows at the given indices, in that order (found from `rows` and `concat` if not given).
        select: the batch with only some columns.
        columns: the names of a batch's columns.
        column: one column, for weights.
        nbytes: the bytes a batch holds, for `explain`.
        lazy: makes a value of this type out of parts that are not here yet; what the parts are, backend and type agree on.
        freeze: starts watching a batch; the function it returns says what was written since, or None.
        accepts: false for values of the type that have no rows (an array without dimensions).
    """

    name: str
    length: Callable[[Any], int]
    rows: Callable[[Any, int, int], Any]
    concat: Callable[[Sequence[Any]], Any]
    take: Callable[[Any, Sequence[int]], Any] | None = None
    select: Callable[[Any, Sequence[str]], Any] | None = None
    columns: Callable[[Any], Sequence[str]] | None = None
    column: Callable[[Any, str], Any] | None = None
    nbytes: Callable[[Any], int] | None = None
    lazy: Callable[..., Any] | None = None
    freeze: Callable[[Any], Callable[[], str | None]] | None = None
    accepts: Callable[[Any], bool] | None = None

    def pick(self, batch: Any, indices: Sequence[int]) -> Any:
        """The rows at `indices`, in that order."""
        if self.take is not None:
            return self.take(batch, indices)
        return self.concat([self.rows(batch, row, row + 1) for row in indices] or [self.rows(batch, 0, 0)])

    def selected(self, batch: Any, columns: Sequence[str]) -> Any:
        """The batch with only those of `columns` that it has.

        Raises:
            BatchTypeError: the type cannot select columns.
        """
        if self.select is None:
            raise BatchTypeError(
                f"columns {list(columns)} were asked of a {self.name}, which cannot select columns; give select= to register_batch_type"
            )
        present = columns if self.columns is None else [name for name in columns if name in set(self.columns(batch))]
        return self.select(batch, present)

    def chunk(self, batch: Any, parts: int) -> list[Any]:
        """The batch in `parts` runs whose lengths differ by at most one."""
        offsets = even_cut(self.length(batch), parts).offsets
        return [self.rows(batch, start, stop) for start, stop in zip(offsets, offsets[1:], strict=False)]


_registered: dict[type, BatchType] = {}
_found: dict[type, BatchType | None] = {}
_entry_points: dict[str, list[Any]] | None = None


def register_batch_type(
    cls: type,
    *,
    length: Callable[[Any], int] = len,
    rows: Callable[[Any, int, int], Any] | None = None,
    concat: Callable[[Sequence[Any]], Any] | None = None,
    take: Callable[[Any, Sequence[int]], Any] | None = None,
    select: Callable[[Any, Sequence[str]], Any] | None = None,
    columns: Callable[[Any], Sequence[str]] | None = None,
    column: Callable[[Any, str], Any] | None = None,
    nbytes: Callable[[Any], int] | None = None,
    lazy: Callable[..., Any] | None = None,
    freeze: Callable[[Any], Callable[[], str | None]] | None = None,
) -> BatchType:
    """Teach dispatch that values of `cls` (and of its subclasses) are batches; what is not given, the class itself must offer.

    Args: see the attributes of BatchType.

    Raises:
        BatchTypeError: no `concat` (or no way to cut rows) is given and the class has none.
    """
    if not isinstance(cls, type):
        raise BatchTypeError(f"register_batch_type: got {type(cls).__name__}, expected a class")
    rows = rows or _rows_of(cls)
    concat = concat or _concat_of(cls)
    if rows is None or concat is None:
        lacking, example = ("rows", "lambda x, a, b: x[a:b]") if rows is None else ("concat", "lambda parts: ...")
        raise BatchTypeError(
            f"register_batch_type: {cls.__qualname__} has no {lacking} of its own; give {lacking}={example}"
        )
    batch_type = BatchType(cls.__qualname__, length, rows, concat, take, select, columns, column, nbytes, lazy, freeze)
    _registered[cls] = batch_type
    _found.clear()
    return batch_type


def batch_type_of(value: object) -> BatchType | None:
    """What dispatch can do with `value`, or None when it is no batch and goes whole."""
    cls = type(value)
    try:
        batch_type = _found[cls]
    except KeyError:
        batch_type = _found[cls] = _find(cls)
    return batch_type if batch_type is None or batch_type.accepts is None or batch_type.accepts(value) else None


def _find(cls: type) -> BatchType | None:
    if cls.__module__ == "builtins":
        return _registered.get(cls)
    _load_entry_points(cls)
    for base in cls.__mro__:
        if base in _registered:
            return _registered[base]
        adapter = ADAPTERS.get(f"{base.__module__}.{base.__qualname__}")
        if adapter is not None:
            return BatchType(base.__qualname__, **adapter())
    return _by_shape(cls)


def _by_shape(cls: type) -> BatchType | None:
    rows, concat = _rows_of(cls), _concat_of(cls)
    if rows is None or concat is None or not callable(getattr(cls, "chunk", None)) or not hasattr(cls, "__len__"):
        return None
    select = _select if callable(getattr(cls, "select", None)) else None
    return BatchType(cls.__qualname__, len, rows, concat, select=select, column=_item)


def _rows_of(cls: type) -> Callable[[Any, int, int], Any] | None:
    if callable(getattr(cls, "__getitem__", None)):
        return _rows_by_index
    return _rows_by_slice if callable(getattr(cls, "slice", None)) else None


def _concat_of(cls: type) -> Callable[[Sequence[Any]], Any] | None:
    concat: Callable[[Sequence[Any]], Any] | None = getattr(cls, "concat", None)
    return concat if callable(concat) else None


def _rows_by_index(batch: Any, start: int, stop: int) -> Any:
    return batch[start:stop]


def _rows_by_slice(batch: Any, start: int, stop: int) -> Any:
    return batch.slice(start, stop)


def _select(batch: Any, columns: Sequence[str]) -> Any:
    return batch.select(list(columns))


def _item(batch: Any, column: str) -> Any:
    return batch[column]


def _load_entry_points(cls: type) -> None:
    """Load what installed packages say about their own types, each only once a value from that package is met.

    An entry point is named after the package its types live in (`fanfold.dataproto`) and loads to a function that is
    given `register_batch_type`. So a package teaches dispatch its types without importing dispatch, and dispatch
    imports nothing that the program has not imported itself.
    """
    waiting = _waiting_entry_points()
    modules = {base.__module__ for base in cls.__mro__}
    for package in [name for name in waiting if any(f"{module}.".startswith(f"{name}.") for module in modules)]:
        waiting.pop(package).load()(register_batch_type)


def _waiting_entry_points() -> dict[str, Any]:
    global _entry_points  # noqa: PLW0603  found once per process, at first need
    if _entry_points is None:
        from importlib.metadata import entry_points  # noqa: PLC0415  costs as much as everything else here together

        _entry_points = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return _entry_points
