"""MethodSpec: what a mark on a method says, as a frozen value on the function itself."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from fanfold.dispatch.annotations import marks_of
from fanfold.dispatch.errors import RegistrationError
from fanfold.dispatch.modes import Dispatch, Execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanfold.dispatch.marks import Weights
    from fanfold.dispatch.merge import Merge
    from fanfold.dispatch.registry import ModeFunctions

MAGIC_ATTR = "__fanfold_spec__"

Kind = Literal["sync", "async", "generator", "async_generator"]
Uneven = Literal["split", "pad", "error", "skip"]
Inputs = Literal["writable", "readonly"]


@dataclass(frozen=True)
class MethodSpec:
    """What `@register` says about a method.

    Attributes:
        dispatch_mode: how arguments are spread and results collected.
        execute_mode: which ranks run it.
        blocking: whether a call waits for the results.
        materialize_futures: whether results that are not here yet become values before the method sees them.
        uneven: rows that do not divide: "split" them evenly, "pad", "error", or "skip" ranks that get none.
        balance: weights by which rows are dealt out: a column name or a function of the batch.
        reads: the only columns that travel; None for all.
        inputs: whether the method may write into its batches.
        apart: columns of its results that are kept each by itself, where results stay with the ranks.
        merge: a rule by which results become one value, or rules by key.
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
    apart: tuple[str, ...] = ()
    merge: Merge | None = None
    timeout: float | None = None
    kind: Kind = "sync"


def spec_of(function: object) -> MethodSpec | None:
    """The mark on a function or method; None if it has none."""
    spec = getattr(function, MAGIC_ATTR, None)
    return spec if isinstance(spec, MethodSpec) else None


def specs_of(cls: type) -> dict[str, MethodSpec]:
    """The marks of a class by method name: bases first, each class in the order of its definitions.

    A method that overrides a marked one and has no mark of its own keeps the base's.

    Raises:
        RegistrationError: a marked function was made a class method, static method or property, or has wrong marks on
            its parameters.
    """
    specs: dict[str, MethodSpec] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            _check_attribute(base, name, attribute)
            spec = _spec_in_class(attribute, specs.get(name))
            if spec is not None:
                specs[name] = spec
            elif name in specs:
                del specs[name]
    return specs


def kind_of(function: Callable[..., Any]) -> Kind:
    """What calling the function gives: a value, a coroutine, a generator or an asynchronous generator."""
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    if inspect.iscoroutinefunction(function):
        return "async"
    return "generator" if inspect.isgeneratorfunction(function) else "sync"


def _spec_in_class(attribute: Any, inherited: MethodSpec | None) -> MethodSpec | None:
    """The mark of a class attribute: its own, or for a plain function that overrides a marked one the base's."""
    spec = spec_of(attribute) or (inherited if inspect.isfunction(attribute) else None)
    if spec is not None:
        marks_of(attribute)  # wrong marks on parameters are to be refused before the first call
        spec = replace(spec, kind=kind_of(attribute))
    return spec


def _check_attribute(cls: type, name: str, attribute: Any) -> None:
    inner = getattr(attribute, "__func__", getattr(attribute, "fget", None))
    if isinstance(attribute, (classmethod, staticmethod, property)) and spec_of(inner) is not None:
        raise RegistrationError(
            f"{cls.__qualname__}.{name}: got a {type(attribute).__name__}, expected a method that takes self, for a "
            "rank runs it on its own worker; take that decorator away"
        )
