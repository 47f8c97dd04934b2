"""The only place that makes attributes out of specs: the methods of a group."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.dispatch import MethodSpec, specs_of
from fanfold.worker.errors import MethodNameClashError, UnknownMethodError
from fanfold.worker.options import DEFAULTS, CallOptions, Uneven
from fanfold.worker.roles import roles_of
from fanfold.worker.typos import nearest, refuses_typos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fanfold.worker.calling import CallingGroup


class Method(NamedTuple):
    """A registered method of a worker class: its mark, and the function itself."""

    spec: MethodSpec
    function: Callable[..., Any]


class BoundMethod:
    """A method of all ranks: called on the driver like one function; signature and docstring are the original's."""

    def __init__(self, group: CallingGroup[Any], method: Method, options: CallOptions = DEFAULTS) -> None:
        self._group = group
        self._options = options
        self.spec, self._function = method
        self.__name__ = self._function.__name__
        self.__qualname__ = f"{group.worker_class.__qualname__}.{self.__name__}"
        self.__doc__ = self._function.__doc__
        self.__wrapped__ = self._function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method on the ranks; arguments and result as its registration says."""
        return self._group.run(self.spec, self._function, args, kwargs, self._options)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return the plan of a call with these arguments as a table, without sending anything."""
        return self._group.plan(self.spec, self._function, args, kwargs, self._options).explain()

    @refuses_typos
    def options(
        self,
        *,
        timeout: float | None = None,
        blocking: bool | None = None,
        ranks: Sequence[int] | None = None,
        uneven: Uneven | None = None,
    ) -> BoundMethod:
        """Return the method with other options; this one, and the registration, stay as they are.

        Args:
            timeout: Seconds for the call.
            blocking: Whether to wait for the result, or return the `Call`.
            ranks: The only ranks that run it.
            uneven: What becomes of rows that do not divide evenly.

        Raises:
            UnknownOptionError: An option that does not exist.
            GroupUsageError: A value that the option cannot have.
        """
        changed = self._options.but(timeout=timeout, blocking=blocking, ranks=ranks, uneven=uneven)
        return BoundMethod(self._group, Method(self.spec, self._function), changed)

    @property
    def __signature__(self) -> inspect.Signature:
        """What a caller may give: the original's signature without the worker."""
        return without_self(inspect.signature(self._function))

    def __repr__(self) -> str:
        return f"<{self.__qualname__}{self.__signature__} of {self._group!r}>"


def methods_of(cls: type, group_class: type) -> dict[str, Method]:
    """Find the methods that a worker class registers.

    Raises:
        MethodNameClashError: A registered method would hide an attribute of the group.
    """
    return {name: _method(cls, name, spec, group_class) for name, spec in specs_of(cls).items()}


def check_class(cls: type, group_class: type) -> None:
    """Refuse a worker class whose methods or roles cannot all be attributes of the group.

    Raises:
        MethodNameClashError: Names both places.
    """
    methods = methods_of(cls, group_class)
    for role in roles_of(cls):
        refuse_hiding(role, f"{cls.__qualname__} has a role {role!r}", group_class)
        if role in methods:
            raise MethodNameClashError(f"{cls.__qualname__} has a role {role!r} and a method of that name; rename one")


def refuse_hiding(name: str, what: str, group_class: type) -> None:
    """Refuse a name of the user's that the group needs itself.

    Raises:
        MethodNameClashError: Names both places.
    """
    if hasattr(group_class, name) or any(name in vars(cls).get("__annotations__", {}) for cls in group_class.__mro__):
        raise MethodNameClashError(
            f"{what}, but {group_class.__qualname__}.{name} is part of the group itself; rename yours"
        )


def unknown_method(group: CallingGroup[Any], name: str, known: Iterable[str]) -> UnknownMethodError:
    """Make the error for a name that the worker class does not register, with the nearest that it does."""
    names = sorted(known)
    near = nearest([name], names)
    hint = f"did you mean {near[0]!r}? " if near else ""
    plain = [known for known in names if "." not in known]
    has = f"it registers {', '.join(plain)}" if plain else "it registers none"
    exists = hasattr(group.worker_class, name)
    cause = "is not marked with @register" if exists else "has no such method"
    return UnknownMethodError(
        f"{group!r} has no attribute {name!r}: {group.worker_class.__qualname__} {cause}; {hint}{has}"
    )


def without_self(signature: inspect.Signature) -> inspect.Signature:
    """Return a method's signature as its caller sees it."""
    parameters: Mapping[str, inspect.Parameter] = signature.parameters
    return signature.replace(parameters=list(parameters.values())[1:])


def _method(cls: type, name: str, spec: MethodSpec, group_class: type) -> Method:
    refuse_hiding(name, f"{cls.__qualname__}.{name} is registered", group_class)
    return Method(spec, inspect.getattr_static(cls, name))
