"""Which functions a dispatch mode stands for: look-up, registration, replacement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fanfold.dispatch.errors import RegistrationError, UnknownModeError
from fanfold.dispatch.modes import Dispatch, Execute

DispatchFunction = Callable[..., tuple[Any, Any]]
CollectFunction = Callable[..., Any]

DISPATCH_MODE_FN_REGISTRY: dict[Dispatch, dict[str, Callable[..., Any]]] = {}


class ModeFunctions(NamedTuple):
    """What a mode does.

    Attributes:
        dispatch_fn: `(group, *args, **kwargs) -> (args, kwargs)`, each argument a list with one entry per rank.
        collect_fn: `(group, outputs) -> result`, outputs in rank order.
    """

    dispatch_fn: DispatchFunction
    collect_fn: CollectFunction


DispatchMode = Dispatch | ModeFunctions | Mapping[str, Callable[..., Any]]


def register_dispatch_mode(name: str, dispatch_fn: DispatchFunction, collect_fn: CollectFunction) -> Dispatch:
    """Add a dispatch mode and return it; processes that unpickle it must import the module that registers it.

    Raises:
        DuplicateModeError: the name is taken.
        RegistrationError: one of the two is no function.
    """
    functions = checked_functions(f"register_dispatch_mode({name!r})", dispatch_fn, collect_fn)
    mode = Dispatch.register(name, getattr(dispatch_fn, "__module__", ""))
    DISPATCH_MODE_FN_REGISTRY[mode] = functions._asdict()
    return mode


def update_dispatch_mode(mode: Dispatch, dispatch_fn: DispatchFunction, collect_fn: CollectFunction) -> None:
    """Replace what a registered mode does, from the next call on.

    Raises:
        UnknownModeError: the mode is not registered.
        RegistrationError: one of the two is no function.
    """
    get_predefined_dispatch_fn(mode)
    DISPATCH_MODE_FN_REGISTRY[mode] = checked_functions(
        f"update_dispatch_mode({mode!r})", dispatch_fn, collect_fn
    )._asdict()


def get_predefined_dispatch_fn(dispatch_mode: Dispatch) -> dict[str, Callable[..., Any]]:
    """The functions of a registered mode, as `{"dispatch_fn": ..., "collect_fn": ...}`.

    Raises:
        UnknownModeError: the mode is not registered.
    """
    if dispatch_mode not in DISPATCH_MODE_FN_REGISTRY:
        known = ", ".join(mode.name for mode in DISPATCH_MODE_FN_REGISTRY)
        raise UnknownModeError(
            f"got dispatch mode {dispatch_mode!r}, expected one of {known}; add one with register_dispatch_mode"
        )
    return DISPATCH_MODE_FN_REGISTRY[dispatch_mode]


def get_predefined_execute_fn(execute_mode: Execute) -> dict[str, str]:
    """The name of the group's method that runs a call, as `{"execute_fn_name": ...}`.

    Raises:
        UnknownModeError: it is no execute mode.
    """
    if not isinstance(execute_mode, Execute):
        raise UnknownModeError(f"got execute mode {execute_mode!r}, expected Execute.ALL or Execute.RANK_ZERO")
    return {"execute_fn_name": f"execute_{execute_mode.name.lower()}"}


def functions_of(where: str, mode: Dispatch | ModeFunctions) -> ModeFunctions:
    """The two functions of a mode.

    Raises:
        UnknownModeError: the mode is not registered.
    """
    if isinstance(mode, ModeFunctions):
        return mode
    try:
        return ModeFunctions(**get_predefined_dispatch_fn(mode))
    except UnknownModeError as problem:
        raise UnknownModeError(f"{where}: {problem}") from None


def checked_functions(where: str, dispatch_fn: object, collect_fn: object) -> ModeFunctions:
    """Refuse what cannot be called.

    Raises:
        RegistrationError: names the one that is no function.
    """
    for name, function in (("dispatch_fn", dispatch_fn), ("collect_fn", collect_fn)):
        if not callable(function):
            raise RegistrationError(f"{where}: {name} is {type(function).__name__} {function!r}, expected a function")
    return ModeFunctions(dispatch_fn, collect_fn)  # type: ignore[arg-type]  # just seen to be callable
