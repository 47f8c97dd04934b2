"""The only place that makes attributes out of specs: the methods of a group."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import MethodSpec, specs_of
from fanfold.worker.errors import MethodNameClashError, UnknownMethodError

if TYPE_CHECKING:
    from fanfold.worker.group import WorkerGroup


class BoundMethod:
    """A method of all ranks: called on the driver like one function, with the signature and docstring of the original."""

    def __init__(self, group: WorkerGroup[Any], name: str, spec: MethodSpec, function: Callable[..., Any]) -> None:
        self._group = group
        self._function = function
        self.spec = spec
        self.__name__ = name
        self.__qualname__ = f"{group.worker_class.__qualname__}.{name}"
        self.__doc__ = function.__doc__
        self.__signature__ = _without_self(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._group.run(self.spec, self._function, args, kwargs)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return the plan of a call with these arguments as a table, without sending anything."""
        return self._group.plan(self.spec, self._function, args, kwargs).explain()

    def __repr__(self) -> str:
        return f"<{self.__qualname__}{self.__signature__} of {self._group!r}>"


def bound_methods(group: WorkerGroup[Any], cls: type) -> dict[str, BoundMethod]:
    """Make the methods that `cls` registers into methods of the group.

    Raises:
        MethodNameClashError: A registered method would hide an attribute of the group.
    """
    return {name: _bound(group, cls, name, spec) for name, spec in specs_of(cls).items()}


def unknown_method(group: WorkerGroup[Any], name: str, known: Iterable[str]) -> UnknownMethodError:
    """Make the error for a name that the worker class does not register, with the nearest that it does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    has = f"it registers {', '.join(names)}" if names else "it registers none"
    exists = hasattr(group.worker_class, name)
    cause = "is not marked with @register" if exists else "has no such method"
    return UnknownMethodError(f"{group!r} has no attribute {name!r}: {group.worker_class.__qualname__} {cause}; {hint}{has}")


def _bound(group: WorkerGroup[Any], cls: type, name: str, spec: MethodSpec) -> BoundMethod:
    if hasattr(type(group), name):
        raise MethodNameClashError(
            f"{cls.__qualname__}.{name} is registered, but {type(group).__qualname__}.{name} is part of the group itself; "
            "rename the worker's method"
        )
    return BoundMethod(group, name, spec, inspect.getattr_static(cls, name))


def _without_self(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters: Mapping[str, inspect.Parameter] = signature.parameters
    return signature.replace(parameters=list(parameters.values())[1:])
