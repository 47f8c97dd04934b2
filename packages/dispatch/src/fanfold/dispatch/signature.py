"""Bind a call to the method's real signature, and find the mark of each argument."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin

from fanfold.dispatch.errors import ArgumentError, RegistrationError
from fanfold.dispatch.marks import Mark, PerRank, Replicate, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_NAMES_OF_MARKS = {"Annotated": Annotated, "PerRank": PerRank, "Replicate": Replicate, "Shard": Shard}


class Argument(NamedTuple):
    """One argument of one call.

    Attributes:
        name: the parameter, for messages; `args[2]` inside `*args`.
        value: what the caller passed, without the mark around it.
        mark: how it travels; None for what the mode does by default.
    """

    name: str
    value: Any
    mark: Mark | None = None


@dataclass(frozen=True)
class BoundCall:
    """Arguments as the caller passed them: by position, and by keyword."""

    positional: tuple[Argument, ...]
    keyword: dict[str, Argument]

    def arguments(self) -> tuple[Argument, ...]:
        """All of them."""
        return (*self.positional, *self.keyword.values())


def bind_call(label: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
    """Bind arguments to `function`, whose first parameter is the worker and is skipped.

    Raises:
        ArgumentError: the call does not fit; the message holds the signature.
    """
    signature = signature_of(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as problem:
        raise ArgumentError(f"{label}: {problem}; the signature is {signature}. Nothing was sent") from None
    marks, rest = marks_of(function), _name_of_keywords(signature)
    names = list(_names_of_positional(signature, len(args)))
    return BoundCall(
        tuple(
            argument(name, value, marks.get(name.partition("[")[0])) for name, value in zip(names, args, strict=True)
        ),
        {name: _keyword_argument(signature, rest, marks, name, value) for name, value in kwargs.items()},
    )


def _keyword_argument(
    signature: inspect.Signature, rest: str, marks: Mapping[str, Mark], name: str, value: Any
) -> Argument:
    parameter = signature.parameters.get(name)
    if parameter is None:
        return argument(name, value, marks.get(rest))
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:  # the same name may stand in `**rest` once more
        return argument(f"{rest}[{name!r}]", value, marks.get(rest))
    return argument(name, value, marks.get(name))


def argument(name: str, value: Any, mark: Mark | None = None) -> Argument:
    """An argument with the mark around its value, or else the given one.

    Raises:
        ArgumentError: a mark that holds no value.
    """
    if isinstance(value, Mark) and value.has_value:
        return Argument(name, value.value, value)
    if isinstance(value, Mark) or (isinstance(value, type) and issubclass(value, Mark)):
        kind = value.__name__ if isinstance(value, type) else type(value).__name__
        raise ArgumentError(f"argument {name!r} is a mark without a value; write {kind}(value)")
    return Argument(name, value, mark)


@lru_cache(maxsize=4096)
def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature a caller of the group sees: without the worker itself."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if parameters and parameters[0].kind in by_position:
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


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


def _names_of_positional(signature: inspect.Signature, count: int) -> Iterator[str]:
    parameters = iter(signature.parameters.values())
    for index in range(count):
        parameter = next(parameters)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (f"{parameter.name}[{rest}]" for rest in range(count - index))
            return
        yield parameter.name


def _name_of_keywords(signature: inspect.Signature) -> str:
    kind = inspect.Parameter.VAR_KEYWORD
    return next((parameter.name for parameter in signature.parameters.values() if parameter.kind is kind), "")


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
    """What `Annotated` adds, also inside `Annotated[Batch, Shard] | None`."""
    if get_origin(annotation) is Annotated:
        yield from get_args(annotation)[1:]
    elif get_origin(annotation) in (Union, UnionType):
        for choice in get_args(annotation):
            yield from _extras(choice)


def _evaluated(where: str, function: Callable[..., Any], annotation: Any) -> Any:
    if not isinstance(annotation, str) or not any(name in annotation for name in _NAMES_OF_MARKS):
        return annotation
    module = sys.modules.get(function.__module__)
    names = getattr(function, "__globals__", vars(module) if module else {})
    try:
        return eval(annotation, names, _Names(names))  # noqa: S307  the method's own source text, as typing evaluates it
    except Exception as problem:
        raise RegistrationError(f"{where}: its annotation {annotation} cannot be evaluated ({problem})") from problem


class _Names(dict[str, Any]):
    """Names for an annotation; what exists only for type checkers has a stand-in, for marks are all that matters."""

    def __missing__(self, name: str) -> Any:
        builtins = vars(sys.modules["builtins"])
        return _NAMES_OF_MARKS.get(name) or builtins.get(name) or _Unknown(name)


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
