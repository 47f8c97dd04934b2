"""Batch types: what dispatch can do with a value that has rows, whatever library it comes from.

A type takes part in one of three ways, looked for in this order: it is registered (`register_batch_type`, also by
packages that say so in their entry points), there is an adapter for its class name, or it has the shape of `BatchLike`.
Letters: B rows.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.adapters import ADAPTERS
from fanfold.dispatch.cut import even_cut
from fanfold.dispatch.errors import BatchTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Length = Callable[[Any], int]
    Cutter = Callable[[Any, int, int], Any]
    Joiner = Callable[[Sequence[Any]], Any]
    Taker = Callable[[Any, Sequence[int]], Any]
    Chunker = Callable[[Any, int], Sequence[Any]]
    Selector = Callable[[Any, Sequence[str]], Any]
    Merger = Callable[[Sequence[Any], Mapping[str, Any]], Any]
    Watcher = Callable[[Any], Callable[[], str | None]]

ENTRY_POINT_GROUP = "fanfold.batch_types"


@dataclass(frozen=True)
class BatchType:
    """The operations of one batch type; none of them changes the batch it is given.

    Attributes:
        name: the class, for messages.
        length: B of a batch.
        rows: rows a to b as a batch.
        concat: one batch of all rows, in order.
        take: the rows at the given indices, in that order; without it they are cut and put together one by one.
        chunk: a batch in n parts; without it runs whose lengths differ by at most one.
        select: the batch with only some columns; where there is `part`, with those of them that it turns out to have.
        columns: the names of a batch's columns.
        column: one column, for weights.
        nbytes: the bytes a batch holds, for `explain`.
        merge: like `concat`, by the merge rules of the method for what is not rows; `concat(..., merge=rules)` if
            `concat` has such a parameter.
        lazy: makes a value of this type of parts that are not here yet; backend and type agree on what those are.
        stage: stores a batch in a store that a backend gives, and returns what stands for it in many calls.
        part: part k of n, as even as possible, of a batch whose rows are not here yet; planning does not count them,
            for it would wait, unless padding, weights, `uneven="error"` or a second batch need their number.
        freeze: starts to watch a batch; what it returns says later what was written, or None.
        accepts: false for values of the type that have no rows, such as an array without dimensions.
    """

    name: str
    length: Length
    rows: Cutter
    concat: Joiner
    take: Taker | None = None
    chunk: Chunker | None = None
    select: Selector | None = None
    columns: Callable[[Any], Sequence[str]] | None = None
    column: Callable[[Any, str], Any] | None = None
    nbytes: Callable[[Any], int] | None = None
    merge: Merger | None = None
    lazy: Callable[..., Any] | None = None
    stage: Callable[[Any, Any], Any] | None = None
    part: Callable[[Any, int, int], Any] | None = None
    freeze: Watcher | None = None
    accepts: Callable[[Any], bool] | None = None

    def pick(self, batch: Any, indices: Sequence[int]) -> Any:
        """The rows at `indices`, in that order; an index may stand there more than once."""
        if self.take is not None:
            return self.take(batch, indices)
        return self.concat([self.rows(batch, row, stop) for row, stop in _runs(indices)] or [self.rows(batch, 0, 0)])

    def parts(self, batch: Any, count: int) -> list[Any]:
        """The batch in `count` parts."""
        if self.chunk is not None:
            return list(self.chunk(batch, count))
        return [self.rows(batch, start, stop) for start, stop in even_cut(self.length(batch), count).runs()]

    def narrowed(self, batch: Any, columns: Sequence[str]) -> Any:
        """The batch with those of `columns` that it has; a type without columns stays whole."""
        if self.select is None:
            return batch
        waits = self.part is not None
        present = None if self.columns is None or waits else set(self.columns(batch))
        return self.select(batch, [name for name in columns if present is None or name in present])


_registered: dict[type, BatchType] = {}
_found: dict[type, BatchType | None] = {}


def register_batch_type(
    cls: type,
    *,
    length: Length = len,
    rows: Cutter | None = None,
    concat: Joiner | None = None,
    **more: Any,
) -> BatchType:
    """Teach dispatch that values of `cls` and its subclasses are batches; what is not given, the class must offer.

    Args:
        cls: the class.
        length: B of a batch.
        rows: rows a to b as a batch; without it `batch[a:b]`, or else `batch.slice(a, b)`.
        concat: one batch of all rows; without it `cls.concat`.
        more: any of the other attributes of BatchType: take, chunk, select, columns, column, nbytes, merge, lazy,
            part, stage, freeze, accepts.

    Raises:
        BatchTypeError: rows or concat are missing, something is no function, or there is no such operation.
    """
    if not isinstance(cls, type):
        raise BatchTypeError(f"register_batch_type: got {cls!r}, expected a class")
    rows, concat = rows or _rows_of(cls), concat or _concat_of(cls)
    if rows is None or concat is None:
        lacking, example = ("rows", "lambda batch, a, b: ...") if rows is None else ("concat", "lambda batches: ...")
        raise BatchTypeError(
            f"register_batch_type: {cls.__qualname__} has no {lacking} of its own; give {lacking}={example}"
        )
    unknown = sorted(set(more) - _optional_operations())
    if unknown:
        expected = ", ".join(sorted(_optional_operations()))
        raise BatchTypeError(
            f"register_batch_type: got {', '.join(unknown)}, expected only {expected} besides rows and concat"
        )
    for name, operation in {"length": length, "rows": rows, "concat": concat, **more}.items():
        if operation is not None and not callable(operation):
            raise BatchTypeError(
                f"register_batch_type: {name} of {cls.__qualname__} is {operation!r}, expected a function"
            )
    more.setdefault("merge", _merge_by_concat(concat))
    _registered[cls] = BatchType(cls.__qualname__, length, rows, concat, **more)
    _found.clear()
    return _registered[cls]


def batch_type_of(value: object) -> BatchType | None:
    """What dispatch can do with a value; None when it is no batch."""
    cls = type(value)
    if cls not in _found:
        _found[cls] = _find(cls)
    batch_type = _found[cls]
    return batch_type if batch_type is None or batch_type.accepts is None or batch_type.accepts(value) else None


def lacks_concat(value: object) -> bool:
    """True for what has rows and `chunk` as a batch has, and no way to be put together again."""
    cls = type(value)
    if batch_type_of(value) is not None or _rows_of(cls) is None or _concat_of(cls) is not None:
        return False
    return hasattr(cls, "__len__") and callable(getattr(cls, "chunk", None))


def _find(cls: type) -> BatchType | None:
    if cls.__module__ != "builtins":
        _load_entry_points(cls)
    for base in cls.__mro__:
        known = _registered.get(base) or _adapted(f"{base.__module__}.{base.__qualname__}")
        if known is not None:
            return known
    return _by_shape(cls)


@lru_cache(maxsize=64)
def _adapted(name: str) -> BatchType | None:
    adapter = ADAPTERS.get(name)
    return None if adapter is None else BatchType(name.rpartition(".")[2], **adapter())


def _by_shape(cls: type) -> BatchType | None:
    rows, concat = _rows_of(cls), _concat_of(cls)
    if rows is None or concat is None or not hasattr(cls, "__len__") or not callable(getattr(cls, "chunk", None)):
        return None
    return BatchType(cls.__qualname__, len, rows, concat, column=_column, **_optional_by_shape(cls, concat))


def _optional_by_shape(cls: type, concat: Joiner) -> dict[str, Any]:
    """Operations that a class may have under the names that users of verl's DataProto know."""
    found: dict[str, Any] = {"merge": _merge_by_concat(concat)}
    if callable(getattr(cls, "select_idxs", None)):
        found["take"] = lambda batch, indices: batch.select_idxs(list(indices))
    if callable(getattr(cls, "select", None)):
        found["select"] = lambda batch, columns: batch.select(list(columns))
    return found


def _merge_by_concat(concat: Joiner) -> Merger | None:
    try:
        takes_rules = "merge" in inspect.signature(concat).parameters
    except (TypeError, ValueError):  # built-in functions may have no signature
        return None
    return (lambda parts, rules: concat(parts, merge=rules)) if takes_rules else None  # type: ignore[call-arg]


def _rows_of(cls: type) -> Cutter | None:
    if callable(getattr(cls, "__getitem__", None)):
        return lambda batch, start, stop: batch[start:stop]
    return (lambda batch, start, stop: batch.slice(start, stop)) if callable(getattr(cls, "slice", None)) else None


def _concat_of(cls: type) -> Joiner | None:
    concat: Joiner | None = getattr(cls, "concat", None)
    return concat if callable(concat) else None


def _column(batch: Any, name: str) -> Any:
    return batch[name]


def _optional_operations() -> set[str]:
    return set(BatchType.__dataclass_fields__) - {"name", "length", "rows", "concat"}


def _load_entry_points(cls: type) -> None:
    """Load what installed packages say about their own types, each once a value from that package is met.

    An entry point is named after the package its types live in ("fanfold.dataproto") and loads to a function that is
    given `register_batch_type`. So a package teaches dispatch its types without importing dispatch, and dispatch
    imports nothing that the program has not imported itself.
    """
    waiting, modules = _waiting_entry_points(), {base.__module__ for base in cls.__mro__}
    for package in [name for name in waiting if any(f"{module}.".startswith(f"{name}.") for module in modules)]:
        try:
            waiting[package].load()(register_batch_type)
        except Exception as problem:
            raise BatchTypeError(
                f"{cls.__qualname__}: entry point {package!r} of group {ENTRY_POINT_GROUP!r} failed ({problem!r}); "
                f"the package that provides {package} has to be repaired, or installed in another version"
            ) from problem
        del waiting[package]


@lru_cache(maxsize=1)
def _waiting_entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points  # noqa: PLC0415  costs as much as everything else here together

    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring rows as one cut: 4, 5, 6, 6 are 4 to 7, and 6 to 7."""
    start = stop = -1
    for index in indices:
        if index != stop:
            if start >= 0:
                yield start, stop
            start = index
        stop = index + 1
    if start >= 0:
        yield start, stop
