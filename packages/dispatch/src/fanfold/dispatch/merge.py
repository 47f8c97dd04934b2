"""Merge rules: how the values of several ranks become one.

A method says `merge="sum"` for results that are plain values, or `merge={"loss": "mean", "tokens": "sum"}` for results
that are dicts; keys without a rule become lists in collect order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fanfold.dispatch.errors import CollectError, RegistrationError

Labelled = Sequence[tuple[int, Any]]
MergeRule = str | Callable[[list[Any]], Any]
Merge = MergeRule | Mapping[str, MergeRule]


def check_merge(where: str, merge: Any) -> Merge | None:
    """The rules, a dict of them copied so that nobody changes it later.

    Raises:
        RegistrationError: there is no such rule.
    """
    for key, rule in merge.items() if isinstance(merge, Mapping) else [("", merge)]:
        if not (callable(rule) or rule in RULES or (rule is None and not key)):
            of = f" of {key!r}" if key else ""
            raise RegistrationError(
                f"{where}: merge rule{of} is {rule!r}, expected one of {', '.join(RULES)}, or a function"
            )
    return dict(merge) if isinstance(merge, Mapping) else merge


def merge_values(label: str, merge: Merge, labelled: Labelled) -> Any:
    """One value out of the ranks' values.

    Args:
        label: the method, for messages.
        merge: a rule, or a dict of rules by key.
        labelled: (rank, value) in collect order.

    Raises:
        CollectError: values that a rule cannot merge; the message has key, ranks and values.
    """
    if not isinstance(merge, Mapping):
        return _by_rule(label, merge, labelled)
    for rank, value in labelled:
        if not isinstance(value, Mapping):
            raise CollectError(
                f"{label}: merge= has rules by key, and rank {rank} returned {type(value).__name__}, expected a dict",
                dict(labelled),
            )
    keys = dict.fromkeys(key for _, value in labelled for key in value)
    return {key: _by_rule(f"{label}, key {key!r}", merge.get(key, "list"), _of_key(key, labelled)) for key in keys}


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


def _of_key(key: Any, labelled: Labelled) -> list[tuple[int, Any]]:
    return [(rank, value[key]) for rank, value in labelled if key in value]


def _by_rule(label: str, rule: MergeRule, labelled: Labelled) -> Any:
    values = [value for _, value in labelled]
    try:
        return rule(values) if callable(rule) else RULES[rule](values)
    except Exception as problem:
        told = ", ".join(f"rank {rank}: {value!r:.80}" for rank, value in labelled[:8])
        name = getattr(rule, "__name__", rule)
        raise CollectError(f"{label}: merge rule {name!r} cannot merge {told} ({problem})", dict(labelled)) from problem


def _same(values: list[Any]) -> Any:
    if not all(equal(values[0], value) for value in values[1:]):
        raise ValueError("they differ; choose another rule, such as 'list'")
    return values[0]


def _sum(values: list[Any]) -> Any:
    total = values[0]
    for value in values[1:]:
        total = total + value  # not +=, which would change the first rank's value
    return total


RULES: dict[str, Callable[[list[Any]], Any]] = {
    "same": _same,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "mean": lambda values: _sum(values) / len(values),
    "sum": _sum,
    "min": min,
    "max": max,
    "list": list,
}
