"""`@register`: the mark that says how a method is spread over ranks. It refuses here whatever could not work later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from fanfold.dispatch.errors import RegistrationError
from fanfold.dispatch.merge import check_merge
from fanfold.dispatch.modes import Dispatch, Execute
from fanfold.dispatch.registry import ModeFunctions, checked_functions, functions_of
from fanfold.dispatch.rules import collect_rules
from fanfold.dispatch.spec import MAGIC_ATTR, Inputs, MethodSpec, Uneven, kind_of

if TYPE_CHECKING:
    from fanfold.dispatch.marks import Weights
    from fanfold.dispatch.merge import Merge
    from fanfold.dispatch.registry import DispatchMode

# A method keeps its very type, with overloads, coroutines and all: what a ParamSpec can say of it, and more.
F = TypeVar("F", bound=Callable[..., Any])


def register(  # noqa: PLR0913  one place to say everything about a method
    dispatch_mode: DispatchMode = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
    *,
    uneven: Uneven = "split",
    balance: Weights | None = None,
    reads: Sequence[str] | None = None,
    inputs: Inputs = "writable",
    apart: Sequence[str] = (),
    merge: Merge | None = None,
    timeout: float | None = None,
) -> Callable[[F], F]:
    """Mark a method of a worker class: how its arguments are spread over ranks and its results collected.

    The function itself is returned, with the mark on it, so that it behaves and looks as if it had none.

    Args:
        dispatch_mode: a member of Dispatch, or a dict with `dispatch_fn` and `collect_fn`.
        execute_mode: which ranks run it.
        blocking: whether a call waits for the results.
        materialize_futures: whether results that are not here yet become values before the method sees them.
        uneven: rows that do not divide: "split" them as evenly as possible, "pad" to equal lengths, "error", or "skip"
            ranks that get none.
        balance: weights by which rows are dealt out: a column name, or a function of the batch.
        reads: the only columns that travel.
        inputs: "readonly" for a method that never writes into its batches.
        apart: columns of what it returns that are kept each by itself, where results stay with the ranks: whoever reads
            some of them brings no others.
        merge: a rule by which results become one value, or a dict of rules by key: same, first, last, mean, sum, min,
            max, list, or a function of the list of values.
        timeout: seconds a call may take; None for the group's own limit.

    Raises:
        RegistrationError: something that cannot work, with the method's name and what to write instead.
        UnknownModeError: a mode that is not registered.
    """
    options = dict(locals())

    def mark(function: F) -> F:
        where = _checked_function(function)
        setattr(function, MAGIC_ATTR, _spec(where, function, options))
        return function

    given: object = dispatch_mode
    if callable(given) and not isinstance(given, ModeFunctions):
        name = getattr(given, "__qualname__", repr(given))
        raise RegistrationError(
            f"@register on {name}: got the method as dispatch_mode; write @register(), with parentheses"
        )
    return mark


def _checked_function(function: Any) -> str:
    inner = getattr(function, "__func__", getattr(function, "fget", function))
    where = f"@register on {getattr(inner, '__qualname__', type(function).__name__)}"
    if isinstance(function, type) or not callable(inner) or inner is not function:
        raise RegistrationError(
            f"{where}: got a {type(function).__name__}, expected a function; a rank runs a method on its own worker: "
            "put @register directly above the def of a method that takes self"
        )
    if isinstance(function, partial) or not hasattr(type(function), "__get__"):
        raise RegistrationError(
            f"{where}: got a {type(function).__name__}, which is called without the worker it stands in, expected a "
            "function; write a def that takes self and calls it"
        )
    _refuse_second_mark(where, function)
    return where


def _refuse_second_mark(where: str, function: Any) -> None:
    mark = vars(function).get(MAGIC_ATTR)
    copied = getattr(getattr(function, "__wrapped__", None), MAGIC_ATTR, None)  # functools.wraps copies marks along
    if mark is not None and mark is not copied:
        raise RegistrationError(
            f"{where}: it has a mark already, and a second one would change it for every class that has this method; "
            "mark it once, or write a def of its own in the other class that calls it"
        )


def _spec(where: str, function: Callable[..., Any], options: Mapping[str, Any]) -> MethodSpec:
    _check_choice(where, "uneven", options["uneven"], get_args(Uneven))
    _check_choice(where, "inputs", options["inputs"], get_args(Inputs))
    for name in ("blocking", "materialize_futures"):
        _check_choice(where, name, options[name], (True, False))
    if not isinstance(options["execute_mode"], Execute):
        raise RegistrationError(
            f"{where}: execute_mode is {options['execute_mode']!r}, expected Execute.ALL or Execute.RANK_ZERO"
        )
    checked = {
        "dispatch_mode": _checked_mode(where, options["dispatch_mode"]),
        "balance": _checked_balance(where, options["balance"]),
        "reads": None if options["reads"] is None else _checked_columns(where, "reads", options["reads"]),
        "apart": _checked_columns(where, "apart", options["apart"]),
        "merge": check_merge(where, options["merge"]),
        "timeout": _checked_timeout(where, options["timeout"]),
    }
    spec = MethodSpec(**{**options, **checked, "kind": kind_of(function)})
    _check_together(where, spec)
    return spec


def _checked_mode(where: str, mode: object) -> Dispatch | ModeFunctions:
    if isinstance(mode, (Dispatch, ModeFunctions)):
        return mode
    if not isinstance(mode, Mapping):
        raise RegistrationError(
            f"{where}: dispatch_mode is {mode!r}, expected a member of Dispatch, or a dict with dispatch_fn and "
            "collect_fn"
        )
    if set(mode) != {"dispatch_fn", "collect_fn"}:
        keys = ", ".join(map(str, mode)) or "none"
        raise RegistrationError(f"{where}: dispatch_mode has the keys {keys}, expected dispatch_fn and collect_fn")
    return checked_functions(where, mode["dispatch_fn"], mode["collect_fn"])


def _check_choice(where: str, name: str, value: object, choices: Sequence[object]) -> None:
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        raise RegistrationError(f"{where}: {name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def _checked_balance(where: str, balance: Any) -> Any:
    if balance is not None and not isinstance(balance, str) and not callable(balance):
        raise RegistrationError(f"{where}: balance is {balance!r}, expected a column name or a function of the batch")
    return balance


def _checked_columns(where: str, option: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise RegistrationError(
            f"{where}: {option} is {names!r}, expected a list of column names such as ['input_ids']"
        )
    return tuple(dict.fromkeys(names))


def _checked_timeout(where: str, timeout: Any) -> float | None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0):
        raise RegistrationError(
            f"{where}: timeout is {timeout!r}, expected seconds above 0, or None for the group's limit"
        )
    return timeout


def _check_together(where: str, spec: MethodSpec) -> None:
    """Refuse options that contradict one another."""
    collect = collect_rules.rule_of(functions_of(where, spec.dispatch_mode).collect_fn)
    alone = spec.execute_mode is Execute.RANK_ZERO or spec.dispatch_mode is Dispatch.RANK_ZERO
    if spec.merge is not None and (alone or collect is None):
        why = (
            "only one rank runs, so there is nothing to merge"
            if alone
            else "the mode has a collect function of its own"
        )
        raise RegistrationError(f"{where}: merge= is given, but {why}; leave it away")
    if spec.balance is not None and collect is None:
        raise RegistrationError(
            f"{where}: balance= deals rows out in another order, and a custom collect function cannot put results "
            "back; collect with a built-in function, or leave balance= away"
        )
    if "generator" in spec.kind and not alone and collect is not None and collect.kind == "join":
        raise RegistrationError(
            f"{where}: a generator gives many values, and this mode puts one batch per rank together; return the "
            "batch, or use a mode that collects a list, such as Dispatch.ONE_TO_ALL"
        )
