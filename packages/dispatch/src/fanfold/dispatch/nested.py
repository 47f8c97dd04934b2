"""Batches inside tuples, lists, dicts and dataclasses: find them, and build the same container around their parts."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.dispatch.batches import batch_type_of
from fanfold.dispatch.errors import ArgumentError
from fanfold.dispatch.marks import Mark, Replicate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanfold.dispatch.batches import BatchType


class FoundBatch(NamedTuple):
    """A batch somewhere in an argument.

    Attributes:
        path: where, for messages: `batch`, `pair[0]`, `inputs['prompt']`, `state.tokens`.
        batch: the caller's own object.
        type: what can be done with it.
    """

    path: str
    batch: Any
    type: BatchType


def batches_in(value: Any, path: str) -> Iterator[FoundBatch]:
    """The value itself if it is a batch, else every batch in its containers; what is in Replicate is left out.

    Raises:
        ArgumentError: another mark inside a container.
    """
    batch_type = batch_type_of(value)
    if batch_type is not None:
        yield FoundBatch(path, value, batch_type)
        return
    if isinstance(value, Mark) and not isinstance(value, Replicate):
        raise ArgumentError(
            f"{path} is {value!r}; inside a container only Replicate has a meaning, mark the whole argument"
        )
    for step, inner in _children(value):
        yield from batches_in(inner, path + step)


def with_batches(value: Any, change: Callable[[Any, BatchType], Any]) -> Any:
    """The same containers around changed batches; the original stays as it is."""
    batch_type = batch_type_of(value)
    if batch_type is not None:
        return change(value, batch_type)
    if isinstance(value, Replicate):
        return value.value
    if isinstance(value, dict):
        return _dict_like(value, {key: with_batches(inner, change) for key, inner in value.items()})
    if isinstance(value, (list, tuple)):
        return _sequence_like(value, [with_batches(inner, change) for inner in value])
    if _is_record(value):
        return _record_like(value, {name: with_batches(inner, change) for name, inner in _fields(value)})
    return value


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        return ((f"[{key!r}]", inner) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ((f"[{index}]", inner) for index, inner in enumerate(value))
    return ((f".{name}", inner) for name, inner in _fields(value)) if _is_record(value) else iter(())


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(record: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(record, field.name)) for field in dataclasses.fields(record))


def _dict_like(original: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    if type(original) is dict:
        return items
    same_kind = copy.copy(original)  # keeps what a subclass carries, such as a default factory
    same_kind.update(items)
    return same_kind


def _sequence_like(original: Any, items: list[Any]) -> Any:
    return type(original)(*items) if hasattr(original, "_fields") else type(original)(items)


def _record_like(original: Any, fields: dict[str, Any]) -> Any:
    same_kind = copy.copy(original)
    for name, value in fields.items():
        object.__setattr__(same_kind, name, value)  # the copy is new, so frozen dataclasses stay true to their word
    return same_kind
