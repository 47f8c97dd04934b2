"""Bind a call to the method's real signature; each argument gets its name and its mark."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.dispatch.annotations import marks_of
from fanfold.dispatch.errors import ArgumentError
from fanfold.dispatch.marks import Mark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


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


class BoundCall(NamedTuple):
    """Arguments as the caller passed them: by position, and by keyword."""

    positional: tuple[Argument, ...]
    keyword: dict[str, Argument]

    def arguments(self) -> tuple[Argument, ...]:
        """All of them."""
        return (*self.positional, *self.keyword.values())


class Parameter(NamedTuple):
    """One parameter: its name and the mark on it."""

    name: str
    mark: Mark | None


@dataclass(frozen=True)
class Parameters:
    """What a caller of the group may pass to a method: its signature without the worker itself.

    Attributes:
        signature: for binding and for messages.
        positional: what may be passed by position, in order.
        named: what may be passed by keyword.
        rest: `*args`; `more`: `**kwargs`; only looked at where binding has found that they are there.
    """

    signature: inspect.Signature
    positional: tuple[Parameter, ...]
    named: dict[str, Parameter]
    rest: Parameter
    more: Parameter

    def at(self, index: int, value: Any) -> Argument:
        """The argument at a position."""
        if index < len(self.positional):
            return argument(self.positional[index].name, value, self.positional[index].mark)
        return argument(f"{self.rest.name}[{index - len(self.positional)}]", value, self.rest.mark)

    def called(self, name: str, value: Any) -> Argument:
        """The argument of a keyword."""
        if name in self.named:
            return argument(name, value, self.named[name].mark)
        # Beside a positional-only parameter of the same name the keyword is another argument.
        twice = any(name == parameter.name for parameter in self.positional)
        return argument(f"{self.more.name}[{name!r}]" if twice else name, value, self.more.mark)


def bind_call(label: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundCall:
    """Bind arguments to `function`, whose first parameter is the worker and is skipped.

    Raises:
        ArgumentError: the call does not fit; the message says what was got, and holds the signature.
    """
    parameters = parameters_of(function)
    try:
        parameters.signature.bind(*args, **kwargs)
    except TypeError as problem:
        raise ArgumentError(
            f"{label}: {problem}; got {_counted(args, kwargs)}, expected {parameters.signature}. Nothing was sent"
        ) from None
    positional = tuple([parameters.at(index, value) for index, value in enumerate(args)])
    return BoundCall(positional, {name: parameters.called(name, value) for name, value in kwargs.items()})


def _counted(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    by_position = f"{len(args)} by position"
    return f"{by_position} and {', '.join(kwargs)} by keyword" if kwargs else by_position


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
def parameters_of(function: Callable[..., Any]) -> Parameters:
    """The parameters of a method as they stand, looked at once.

    Raises:
        RegistrationError: wrong marks on them.
    """
    marks, kinds = marks_of(function), inspect.Parameter
    signature = _without_worker(inspect.signature(function))
    by_kind: dict[Any, list[Parameter]] = {kind: [] for kind in _KINDS}
    for name, parameter in signature.parameters.items():
        by_kind[parameter.kind].append(Parameter(name, marks.get(name)))
    only, either = by_kind[kinds.POSITIONAL_ONLY], by_kind[kinds.POSITIONAL_OR_KEYWORD]
    nothing = Parameter("", None)
    return Parameters(
        signature,
        (*only, *either),
        {parameter.name: parameter for parameter in (*either, *by_kind[kinds.KEYWORD_ONLY])},
        next(iter(by_kind[kinds.VAR_POSITIONAL]), nothing),
        next(iter(by_kind[kinds.VAR_KEYWORD]), nothing),
    )


_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)


def _without_worker(signature: inspect.Signature) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    takes_it = parameters and parameters[0].kind in _KINDS[:2]
    return signature.replace(parameters=parameters[1:]) if takes_it else signature
