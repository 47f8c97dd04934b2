"""`@register`: the mark that says how a method is spread over ranks. It refuses here whatever could not work later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, get_args

from fanfold.dispatch.errors import RegistrationError
from fanfold.dispatch.merge import check_merge
from fanfold.dispatch.modes import Dispatch, Execute
from fanfold.dispatch.registry import DispatchMode, ModeFunctions, checked_functions, functions_of
from fanfold.dispatch.rules import collect_rules
from fanfold.dispatch.spec import MAGIC_ATTR, Inputs, MergeRule, MethodSpec, Uneven, Weights, kind_of

P = ParamSpec("P")
R = TypeVar("R")


def register(
    dispatch_mode: DispatchMode = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
    *,
    uneven: Uneven = "split",
    balance: Weights | None = None,
    reads: Sequence[str] | None = None,
    inputs: Inputs = "writable",
    merge: MergeRule | Mapping[str, MergeRule] | None = None,
    timeout: float | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a method of a worker class: how its arguments are spread over ranks and its results collected.

    The function itself is returned, so that it behaves and looks as if it were not marked.

    Args: see the attributes of MethodSpec. `dispatch_mode` may also be a dict with `dispatch_fn` and `collect_fn`.

    Raises:
        RegistrationError: something that cannot work, with the method's name and what to write instead.
    """
    options = {
        "dispatch_mode": dispatch_mode,
        "execute_mode": execute_mode,
        "blocking": blocking,
        "materialize_futures": materialize_futures,
        "uneven": uneven,
        "balance": balance,
        "reads": reads,
        "inputs": inputs,
        "merge": merge,
        "timeout": timeout,
    }
    if inspect_misuse(dispatch_mode):
        raise RegistrationError(
            f"@register on {getattr(dispatch_mode, '__qualname__', dispatch_mode)}: write @register(), with parentheses"
        )

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        where = _checked_function(function)
        setattr(function, MAGIC_ATTR, _spec(where, function, options))
        return function

    return mark


def inspect_misuse(dispatch_mode: object) -> bool:
    """True for `@register` without parentheses, which hands the method over as the mode."""
    return callable(dispatch_mode) and not isinstance(dispatch_mode, (Dispatch, ModeFunctions))


def _checked_function(function: Any) -> str:
    where = f"@register on {getattr(function, '__qualname__', type(function).__name__)}"
    if isinstance(function, (classmethod, staticmethod)):
        kind = "class method" if isinstance(function, classmethod) else "static method"
        raise RegistrationError(
            f"@register on {function.__func__.__qualname__}: a {kind} cannot be called on a rank; register a method that takes self"
        )
    if not callable(function) or isinstance(function, type):
        raise RegistrationError(
            f"{where}: got {type(function).__name__}, expected a function; put @register directly above def"
        )
    return where


def _spec(where: str, function: Callable[..., Any], options: dict[str, Any]) -> MethodSpec:
    mode = _checked_mode(where, options["dispatch_mode"])
    if not isinstance(options["execute_mode"], Execute):
        raise RegistrationError(
            f"{where}: execute_mode is {options['execute_mode']!r}, expected Execute.ALL or Execute.RANK_ZERO"
        )
    for name in ("blocking", "materialize_futures"):
        if not isinstance(options[name], bool):
            raise RegistrationError(f"{where}: {name} is {options[name]!r}, expected True or False")
    _check_choice(where, "uneven", options["uneven"], get_args(Uneven))
    _check_choice(where, "inputs", options["inputs"], get_args(Inputs))
    _check_timeout(where, options["timeout"])
    check_merge(where, options["merge"])
    spec = MethodSpec(
        **{
            **options,
            "dispatch_mode": mode,
            "reads": _checked_reads(where, options["reads"]),
            "kind": kind_of(function),
        }
    )
    _check_generator(where, spec)
    return spec


def _checked_mode(where: str, mode: object) -> Dispatch | ModeFunctions:
    if isinstance(mode, (Dispatch, ModeFunctions)):
        return mode
    if not isinstance(mode, Mapping):
        raise RegistrationError(
            f"{where}: dispatch_mode is {type(mode).__name__} {mode!r}, expected a member of Dispatch or a dict with dispatch_fn and collect_fn"
        )
    missing = {"dispatch_fn", "collect_fn"} - set(mode)
    unknown = set(mode) - {"dispatch_fn", "collect_fn"}
    if missing or unknown:
        raise RegistrationError(
            f"{where}: the dispatch_mode dict has keys {sorted(map(str, mode))}, expected exactly dispatch_fn and collect_fn"
        )
    return checked_functions(where, mode["dispatch_fn"], mode["collect_fn"])


def _check_choice(where: str, name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise RegistrationError(f"{where}: {name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def _checked_reads(where: str, reads: object) -> tuple[str, ...] | None:
    if reads is None:
        return None
    if isinstance(reads, str) or not isinstance(reads, Sequence) or not all(isinstance(name, str) for name in reads):
        raise RegistrationError(f"{where}: reads is {reads!r}, expected a list of column names such as ['input_ids']")
    return tuple(reads)


def _check_timeout(where: str, timeout: object) -> None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0):
        raise RegistrationError(
            f"{where}: timeout is {timeout!r}, expected seconds above 0, or None for the group's own limit"
        )


def _check_generator(where: str, spec: MethodSpec) -> None:
    if "generator" not in spec.kind or spec.execute_mode is Execute.RANK_ZERO:
        return
    rule = collect_rules.rule_of(functions_of(spec.dispatch_mode).collect_fn)
    if rule is not None and rule.kind == "join":
        raise RegistrationError(
            f"{where}: a generator gives many values, but {_mode_name(spec)} puts one batch per rank together; "
            "return the batch, or use a mode that collects a list, such as Dispatch.ONE_TO_ALL"
        )


def _mode_name(spec: MethodSpec) -> str:
    return repr(spec.dispatch_mode) if isinstance(spec.dispatch_mode, Dispatch) else "the nd mode"
