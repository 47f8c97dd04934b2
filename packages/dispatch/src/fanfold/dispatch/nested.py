"""Batches inside tuples, lists, dicts and dataclasses: find them, and build the same container around their parts."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.batches import batch_type_of
from fanfold.dispatch.marks import Replicate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanfold.dispatch.batches import BatchType

Change = "Callable[[Any, BatchType], Any]"


def batches_in(value: Any, path: str = "") -> Iterator[tuple[str, Any, BatchType]]:
    """Every batch in `value` (itself, or inside its containers) with its path, such as `["a"][0].b`."""
    batch_type = batch_type_of(value)
    if batch_type is not None:
        yield path, value, batch_type
        return
    for step, inner in _children(value):
        yield from batches_in(inner, path + step)


def with_batches(value: Any, change: Callable[[Any, BatchType], Any]) -> Any:
    """The same container with every batch changed; the original stays as it is."""
    batch_type = batch_type_of(value)
    if batch_type is not None:
        return change(value, batch_type)
    if isinstance(value, Replicate):
        return value.value
    if isinstance(value, dict):
        return _filled(value, {key: with_batches(inner, change) for key, inner in value.items()})
    if isinstance(value, (list, tuple)):
        return _sequence_like(value, [with_batches(inner, change) for inner in value])
    if _is_record(value):
        return _record_like(
            value, {field.name: with_batches(getattr(value, field.name), change) for field in dataclasses.fields(value)}
        )
    return value


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))
    elif _is_record(value):
        yield from ((f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value))


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _filled(original: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    if type(original) is dict:
        return items
    same_kind = copy.copy(original)  # keeps what a subclass carries, such as a default factory
    same_kind.update(items)
    return same_kind


def _sequence_like(original: Any, items: list[Any]) -> Any:
    if hasattr(original, "_fields"):
        return type(original)(*items)
    return type(original)(items)


def _record_like(original: Any, fields: dict[str, Any]) -> Any:
    same_kind = copy.copy(original)
    for name, value in fields.items():
        object.__setattr__(same_kind, name, value)  # a frozen dataclass is copied, never changed
    return same_kind
