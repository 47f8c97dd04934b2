"""MethodSpec: what a mark on a method says, as a frozen value on the function itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fanfold.dispatch.errors import RegistrationError
from fanfold.dispatch.modes import Dispatch, Execute
from fanfold.dispatch.registry import ModeFunctions

MAGIC_ATTR = "__fanfold_spec__"

Kind = Literal["sync", "async", "generator", "async_generator"]
Uneven = Literal["split", "pad", "error", "skip"]
Inputs = Literal["writable", "readonly"]
Weights = str | Sequence[float] | Callable[[Any], Sequence[float]]
MergeRule = str | Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class MethodSpec:
    """What `@register` says about a method.

    Attributes:
        dispatch_mode: how arguments are spread and results collected.
        execute_mode: which ranks run it.
        blocking: whether a call waits for the results.
        materialize_futures: whether results that are not here yet become values before the method sees them.
        uneven: rows that do not divide: "split" as evenly as possible, "pad" to equal lengths, "error", or "skip" ranks without rows.
        balance: weights by which rows are dealt out: a column name or a function of the batch.
        reads: the only columns that travel; None for all.
        inputs: whether the method writes into its batches.
        merge: how results that are no batches become one, by key or for the whole value.
        timeout: seconds a call may take; None for the group's own limit.
        kind: what calling the function gives.
    """

    dispatch_mode: Dispatch | ModeFunctions = Dispatch.ALL_TO_ALL
    execute_mode: Execute = Execute.ALL
    blocking: bool = True
    materialize_futures: bool = True
    uneven: Uneven = "split"
    balance: Weights | None = None
    reads: tuple[str, ...] | None = None
    inputs: Inputs = "writable"
    merge: MergeRule | Mapping[str, MergeRule] | None = None
    timeout: float | None = None
    kind: Kind = "sync"


def spec_of(function: object) -> MethodSpec | None:
    """The mark on a function or method; None if it has none."""
    spec = getattr(function, MAGIC_ATTR, None)
    return spec if isinstance(spec, MethodSpec) else None


def specs_of(cls: type) -> dict[str, MethodSpec]:
    """The marks of a class by method name: bases first, each class in the order of its definitions.

    A method that overrides a marked one without a mark of its own keeps the base's mark.

    Raises:
        RegistrationError: a marked function was made a class method, a static method or a property.
    """
    specs: dict[str, MethodSpec] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            _take_in(specs, base, name, attribute)
    return specs


def kind_of(function: Callable[..., Any]) -> Kind:
    """What calling the function gives: a value, a coroutine, a generator or an asynchronous generator."""
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    if inspect.iscoroutinefunction(function):
        return "async"
    return "generator" if inspect.isgeneratorfunction(function) else "sync"


def _take_in(specs: dict[str, MethodSpec], cls: type, name: str, attribute: object) -> None:
    wrapped = _wrapped_mark(attribute)
    if wrapped:
        raise RegistrationError(
            f"{cls.__qualname__}.{name}: a {wrapped} cannot be called on a rank; register a method that takes self"
        )
    spec = spec_of(attribute) if callable(attribute) else None
    if spec is not None:
        specs[name] = spec
    elif name in specs and inspect.isfunction(attribute):
        specs[name] = replace(specs[name], kind=kind_of(attribute))
    elif name in specs:
        del specs[name]


def _wrapped_mark(attribute: object) -> str:
    if isinstance(attribute, (classmethod, staticmethod)) and spec_of(attribute.__func__) is not None:
        return "class method" if isinstance(attribute, classmethod) else "static method"
    return "property" if isinstance(attribute, property) and spec_of(attribute.fget) is not None else ""
