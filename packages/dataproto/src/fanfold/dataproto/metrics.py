"""Rules that make one value of several, and the lists that metrics become."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fanfold.dataproto.errors import ColumnTypeError, MergeError
from fanfold.dataproto.text import short


def _mean(values: list[Any]) -> Any:
    if all(isinstance(value, torch.Tensor) for value in values):
        return torch.stack(values).mean(0, dtype=None if values[0].is_floating_point() else torch.float64)
    return sum(values[1:], values[0]) / len(values)


def _extreme(
    values: list[Any], choose: Callable[..., Any], tensors: Callable[..., Any], arrays: Callable[..., Any]
) -> Any:
    if all(isinstance(value, torch.Tensor) for value in values):
        return tensors(torch.stack(values), 0)
    if all(isinstance(value, np.ndarray) for value in values):
        return arrays(np.stack(values), 0)
    return choose(values)


def _timing(values: list[Any]) -> Any:
    return _timing_of("", values)


def _timing_of(name: str, values: list[Any]) -> Any:
    if all(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _timing_of(str(key), [value[key] for value in values if key in value]) for key in keys}
    rule = "max" if name.endswith(("/max", "_max")) else "min" if name.endswith(("/min", "_min")) else "mean"
    numbers = all(isinstance(value, int | float | np.number | torch.Tensor) for value in values)
    return _RULES[rule](values) if numbers else values[0]


_RULES: dict[str, Callable[[list[Any]], Any]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "mean": _mean,
    "sum": lambda values: sum(values[1:], values[0]),
    "min": lambda values: _extreme(values, min, torch.amin, np.min),
    "max": lambda values: _extreme(values, max, torch.amax, np.max),
    "list": list,
    "timing": _timing,
}
NAMES = frozenset({"same", *_RULES})


def check_rule(key: str, rule: object) -> None:
    """Refuse what is no rule, naming its key.

    Raises:
        ColumnTypeError: neither a known name nor a function.
    """
    if not (callable(rule) or (isinstance(rule, str) and rule in NAMES)):
        raise ColumnTypeError(f"the merge rule for {key!r} is {rule!r}; expected a function or one of {sorted(NAMES)}")


def apply(key: str, rule: Any, values: list[Any]) -> Any:
    """Make one value of several.

    Raises:
        MergeError: the rule cannot work with these values; names the key and shows them.
    """
    try:
        return rule(list(values)) if callable(rule) else _RULES[rule](values)
    except Exception as error:
        shown = ", ".join(short(value) for value in values)
        raise MergeError(
            f"the merge rule {rule!r} for meta_info[{key!r}] failed on {shown}: {type(error).__name__}: {error}"
        ) from error


def listed(values: Sequence[Any]) -> dict[str, list[Any]]:
    """Return metrics as one flat list for each name, in the order of the parts.

    A part's metrics are a dict, a list of dicts, or None. A value that is a list already is taken item by item, so that
    merging what was merged before changes nothing.

    Raises:
        MergeError: metrics of another type.
    """
    made: dict[str, list[Any]] = {}
    for value in values:
        for entry in value if isinstance(value, list | tuple) else [value]:
            if entry is None:
                continue
            if not isinstance(entry, Mapping):
                raise MergeError(f"meta_info['metrics'] holds {short(entry)}; expected a dict or a list of dicts")
            for name, item in entry.items():
                made.setdefault(name, []).extend(item if isinstance(item, list) else [item])
    return made
