"""The rules behind the built-in modes, as values that planning can read.

A custom dispatch function can only be called. A built-in one also carries a rule, so that a call is planned (which rows
of which argument go where) before anything is cut.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

Unmarked = Literal["whole", "lists_or_whole", "lists", "rows"]
Collected = Literal["list", "join"]


class DispatchRule(NamedTuple):
    """What becomes of arguments that carry no mark.

    Attributes:
        unmarked: "whole"; "lists": item i to rank i; "lists_or_whole": the same if all are lists; "rows": batches are divided.
        mesh: the mesh whose axis divides; None for all ranks of the group.
        function_first: the first positional argument is a function.
    """

    unmarked: Unmarked
    mesh: str | None = None
    function_first: bool = False


class CollectRule(NamedTuple):
    """What becomes of results.

    Attributes:
        kind: "list": one entry per rank; "join": batches are put together in data-parallel order, other values a list.
        mesh: the mesh that says which ranks are collected and in which order; None for all ranks of the group.
    """

    kind: Collected
    mesh: str | None = None


_dispatch_rules: dict[Any, Callable[..., DispatchRule]] = {}
_collect_rules: dict[Any, Callable[..., CollectRule]] = {}


def dispatches_by(rule: Callable[..., DispatchRule]) -> Callable[[F], F]:
    """Say which rule a built-in dispatch function follows; `rule` receives the arguments of a partial."""

    def remember(function: F) -> F:
        _dispatch_rules[function] = rule
        return function

    return remember


def collects_by(rule: Callable[..., CollectRule]) -> Callable[[F], F]:
    """Say which rule a built-in collect function follows; `rule` receives the arguments of a partial."""

    def remember(function: F) -> F:
        _collect_rules[function] = rule
        return function

    return remember


def dispatch_rule_of(function: Any) -> DispatchRule | None:
    """The rule of a built-in dispatch function (or a partial of one); None for a custom one."""
    return _rule_of(function, _dispatch_rules)


def collect_rule_of(function: Any) -> CollectRule | None:
    """The rule of a built-in collect function (or a partial of one); None for a custom one."""
    return _rule_of(function, _collect_rules)


def _rule_of(function: Any, rules: dict[Any, Callable[..., Any]]) -> Any:
    if isinstance(function, partial):
        rule = rules.get(function.func)
        return None if rule is None else rule(*function.args, **function.keywords)
    try:
        rule = rules.get(function)
    except TypeError:  # an unhashable callable is nobody's built-in
        return None
    return None if rule is None else rule()
