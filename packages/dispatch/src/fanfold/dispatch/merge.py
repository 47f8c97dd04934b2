"""Merge rules: how the values of several ranks become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fanfold.dispatch.errors import CollectError, RegistrationError

Labelled = Sequence[tuple[int, Any]]


def merge_values(where: str, merge: Any, values: Labelled) -> Any:
    """One value out of the ranks' values: by the rule, or for a dict of rules key by key over dicts.

    Keys without a rule become lists, one entry per rank that has the key.

    Args:
        where: the method, for messages.
        merge: a rule or a dict of rules.
        values: (rank, value) in collect order.

    Raises:
        CollectError: values that the rule cannot merge, with key, ranks and values.
    """
    if not isinstance(merge, Mapping):
        return _by_rule(where, merge, values)
    for rank, value in values:
        if not isinstance(value, Mapping):
            raise CollectError(
                f"{where}: merge= has rules by key, but rank {rank} returned {type(value).__name__}; return a dict",
                dict(values),
            )
    keys = dict.fromkeys(key for _, value in values for key in value)
    return {
        key: _by_rule(
            f"{where}, key {key!r}",
            merge.get(key, "list"),
            [(rank, value[key]) for rank, value in values if key in value],
        )
        for key in keys
    }


def check_merge(where: str, merge: object) -> None:
    """Refuse a merge= that names no rule.

    Raises:
        RegistrationError: names the rule and those that exist.
    """
    rules = merge if isinstance(merge, Mapping) else {None: merge}
    for key, rule in rules.items():
        if rule is not None and not callable(rule) and rule not in RULES:
            of = "" if key is None else f" of key {key!r}"
            raise RegistrationError(
                f"{where}: merge rule{of} is {rule!r}, expected one of {', '.join(RULES)}, or a function of the list of values"
            )


def _by_rule(where: str, rule: Any, values: Labelled) -> Any:
    if callable(rule):
        return rule([value for _, value in values])
    try:
        return RULES[rule](values)
    except Disagreement as problem:
        raise CollectError(f"{where}: {problem}", dict(values)) from None
    except TypeError as problem:
        kinds = ", ".join(f"rank {rank}: {type(value).__name__}" for rank, value in values[:4])
        raise CollectError(
            f"{where}: merge rule {rule!r} cannot merge {kinds} ({problem}); choose 'list' or give a function",
            dict(values),
        ) from problem


class Disagreement(Exception):  # noqa: N818  turned into a CollectError that names the method before anyone sees it
    """Values that should be the same are not."""


def _same(values: Labelled) -> Any:
    first_rank, first = values[0]
    for rank, value in values[1:]:
        if not equal(first, value):
            raise Disagreement(
                f"rule 'same', but rank {first_rank} returned {first!r} and rank {rank} {value!r}; choose another merge rule"
            )
    return first


def equal(a: Any, b: Any) -> bool:
    """Equality by content: NaN equals NaN, arrays and tensors are compared whole, containers item by item."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if hasattr(a, "tolist") and hasattr(a, "dtype"):
        return bool(a.dtype == b.dtype and a.shape == b.shape and equal(a.tolist(), b.tolist()))
    return bool(a == b) or bool(a != a and b != b)  # noqa: PLR0124  only NaN differs from itself


def _plain(values: Labelled) -> list[Any]:
    return [value for _, value in values]


def _sum(values: Labelled) -> Any:
    first, *rest = _plain(values)
    for value in rest:
        first = first + value
    return first


RULES: dict[str, Callable[[Labelled], Any]] = {
    "same": _same,
    "first": lambda values: values[0][1],
    "last": lambda values: values[-1][1],
    "mean": lambda values: _sum(values) / len(values),
    "sum": _sum,
    "min": lambda values: min(_plain(values)),
    "max": lambda values: max(_plain(values)),
    "list": _plain,
}
