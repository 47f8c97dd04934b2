"""Bind a call to the method's real signature, and find the mark of each argument."""

from __future__ import annotations

import inspect
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin

from fanfold.dispatch.errors import ArgumentError
from fanfold.dispatch.marks import Mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


class Argument(NamedTuple):
    """One argument of one call.

    Attributes:
        name: the parameter, for messages; `args[2]` inside a `*args`.
        value: what the caller passed, without the mark.
        mark: Shard, Replicate or PerRank; None for what the mode does by default.
    """

    name: str
    value: Any
    mark: Mark | None


class BoundCall(NamedTuple):
    """The arguments as the caller passed them: by position, and by keyword."""

    positional: tuple[Argument, ...]
    keyword: dict[str, Argument]

    def __iter__(self) -> Iterator[Argument]:  # type: ignore[override]  # a call is walked argument by argument
        yield from self.positional
        yield from self.keyword.values()


def bind_call(label: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
    """Bind arguments to `function`, whose first parameter is the worker and is skipped.

    Raises:
        ArgumentError: the call does not fit; the message holds the signature.
    """
    signature = _signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as problem:
        raise ArgumentError(f"{label}: {problem}; the signature is {signature}. Nothing was sent") from None
    marks = _marks(function)
    names = list(_positional_names(signature, len(args)))
    return BoundCall(
        tuple(
            _argument(name, value, marks.get(name.partition("[")[0])) for name, value in zip(names, args, strict=True)
        ),
        {
            name: _argument(name, value, marks.get(name, marks.get(_keywords(signature))))
            for name, value in kwargs.items()
        },
    )


def _argument(name: str, value: Any, mark: Mark | None) -> Argument:
    if isinstance(value, Mark):
        if not value.has_value:
            raise ArgumentError(
                f"argument {name!r} is the mark {value!r} without a value; write {type(value).__name__}(value)"
            )
        return Argument(name, value.value, value)
    if isinstance(value, type) and issubclass(value, Mark):
        raise ArgumentError(f"argument {name!r} is the mark {value.__name__} itself; write {value.__name__}(value)")
    return Argument(name, value, mark)


@lru_cache(maxsize=4096)
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        parameters = parameters[1:]
    return signature.replace(parameters=parameters)


def _positional_names(signature: inspect.Signature, count: int) -> Iterator[str]:
    parameters = iter(signature.parameters.values())
    for index in range(count):
        parameter = next(parameters)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (f"{parameter.name}[{rest}]" for rest in range(count - index))
            return
        yield parameter.name


def _keywords(signature: inspect.Signature) -> str:
    return next((p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD), "")


@lru_cache(maxsize=4096)
def _marks(function: Callable[..., Any]) -> dict[str, Mark]:
    function = inspect.unwrap(function)
    marks = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        mark = _mark_in(_evaluated(function, name, annotation))
        if mark is not None:
            marks[name] = mark
    return marks


def _evaluated(function: Callable[..., Any], name: str, annotation: Any) -> Any:
    # One by one and only where a mark may be: the other annotations may name what exists for type checkers alone.
    if not isinstance(annotation, str) or not any(
        word in annotation for word in ("Shard", "Replicate", "PerRank", "Annotated")
    ):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[function.__module__]) | getattr(function, "__globals__", {}))  # noqa: S307  the method's own source text
    except Exception as problem:
        raise ArgumentError(
            f"{function.__qualname__}: the annotation of {name!r} ({annotation}) may hold a mark but cannot be evaluated: {problem}; "
            "import the names it uses at run time, not only for type checkers"
        ) from problem


def _mark_in(annotation: Any) -> Mark | None:
    if get_origin(annotation) is not Annotated:
        return None
    for extra in get_args(annotation)[1:]:
        if isinstance(extra, Mark):
            return extra
        if isinstance(extra, type) and issubclass(extra, Mark):
            return extra()
    return None
