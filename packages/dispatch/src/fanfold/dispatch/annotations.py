"""Marks on parameters: read from annotations, also where those are text."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Mapping
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from fanfold.dispatch.errors import RegistrationError
from fanfold.dispatch.marks import Mark, PerRank, Replicate, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NAMES_OF_MARKS = {"Annotated": Annotated, "PerRank": PerRank, "Replicate": Replicate, "Shard": Shard}


@lru_cache(maxsize=4096)
def marks_of(function: Callable[..., Any]) -> dict[str, Mark]:
    """The marks on a function's parameters, by name.

    Raises:
        RegistrationError: an annotation that holds two marks, a mark with a value, or cannot be evaluated.
    """
    function = inspect.unwrap(function)
    annotations = getattr(function, "__annotations__", {})
    found = {name: _mark_in(function, name, annotation) for name, annotation in annotations.items() if name != "return"}
    return {name: mark for name, mark in found.items() if mark is not None}


def _mark_in(function: Callable[..., Any], name: str, annotation: Any) -> Mark | None:
    where = f"{getattr(function, '__qualname__', function)}: parameter {name!r}"
    extras = list(_extras(_evaluated(where, function, annotation)))
    marks = [extra for extra in extras if _is_mark(extra)]
    for unknown in (extra for extra in extras if isinstance(extra, _Unknown)):
        raise RegistrationError(
            f"{where} is annotated with {unknown.name}, which only type checkers see and which may be a mark; import "
            "it outside of `if TYPE_CHECKING`"
        )
    if not marks:
        return None
    if len(marks) > 1:
        raise RegistrationError(f"{where} has {len(marks)} marks, expected one of Shard, Replicate and PerRank")
    mark: Mark = marks[0]() if isinstance(marks[0], type) else marks[0]
    if mark.has_value:
        raise RegistrationError(
            f"{where} has the mark {mark!r}; a value belongs to a call, a parameter has the bare mark"
        )
    return mark


def _is_mark(extra: Any) -> bool:
    return isinstance(extra, Mark) or (isinstance(extra, type) and issubclass(extra, Mark))


def _extras(annotation: Any) -> Iterator[Any]:
    """What `Annotated` adds, also inside `Annotated[Batch, Shard] | None` and behind a type alias."""
    if hasattr(annotation, "__value__"):
        annotation = annotation.__value__
    if get_origin(annotation) is Annotated:
        yield from get_args(annotation)[1:]
    elif get_origin(annotation) in (Union, UnionType):
        for choice in get_args(annotation):
            yield from _extras(choice)


def _evaluated(where: str, function: Callable[..., Any], annotation: Any) -> Any:
    """What a text annotation stands for, in the names of its module; any of them may be an alias with a mark."""
    if not isinstance(annotation, str):
        return annotation
    names = getattr(function, "__globals__", {})
    if annotation.isidentifier():
        return _Names(names)[annotation]  # most are, and need no evaluation
    try:
        return eval(annotation, names, _Names(names))  # noqa: S307  the method's own source text, as typing evaluates it
    except Exception as problem:
        if not any(name in annotation for name in _NAMES_OF_MARKS):
            return None  # whatever it says, it says it to type checkers
        raise RegistrationError(f"{where}: its annotation {annotation} cannot be evaluated ({problem})") from problem


class _Names(Mapping[str, Any]):
    """Names for an annotation; what exists only for type checkers has a stand-in, for marks are all that matters."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Any:
        for known in (self._names, vars(builtins), _NAMES_OF_MARKS):
            if name in known:
                return known[name]
        return _Unknown(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Unknown:
    """A type that cannot be seen at run time; whatever is done to it gives another one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NAMES_OF_MARKS.get(name) or _Unknown(f"{self.name}.{name}")

    def __getitem__(self, _: Any) -> _Unknown:
        return self

    def __call__(self, *_: Any, **__: Any) -> _Unknown:
        return self

    def __or__(self, other: Any) -> Any:
        return Union[other, Any]  # noqa: UP007  `|` has no meaning for a stand-in

    __ror__ = __or__
