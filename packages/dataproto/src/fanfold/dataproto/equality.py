"""Are two Python values the same by content? NaN equals NaN; arrays, tensors and containers are compared inside."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fanfold.dataproto import dense


def deep_equal(one: object, other: object) -> bool:
    """Compare two values by type and content; self-containing containers are compared once.

    Args:
        one: anything, such as a cell of an object column or a value of `meta_info`
        other: the same

    Returns:
        True when types and contents agree. NaN equals NaN. What cannot be compared counts as different.

    >>> deep_equal({"a": [float("nan"), torch.ones(2)]}, {"a": [float("nan"), torch.ones(2)]})
    True
    >>> deep_equal([1], [True])
    False
    """
    return _equal(one, other, set())


def _equal(one: Any, other: Any, visited: set[tuple[int, int]]) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, str | bytes | int | bool):
        return bool(one == other)
    if isinstance(one, float):
        return one == other or (one != one and other != other)  # noqa: PLR0124 (NaN is what differs from itself)
    return _equal_inside(one, other, visited)


def _equal_inside(one: Any, other: Any, visited: set[tuple[int, int]]) -> bool:
    pair = (id(one), id(other))
    if pair in visited:
        return True
    visited = visited | {pair}
    if isinstance(one, np.ndarray):
        return _equal_arrays(one, other, visited)
    if isinstance(one, torch.Tensor):
        return _equal_tensors(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(value, other[key], visited) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_equal(a, b, visited) for a, b in zip(one, other, strict=True))
    return _equal_leaves(one, other)


def _equal_arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], visited: set[tuple[int, int]]) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype != object:
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM"))
    return all(_equal(a, b, visited) for a, b in zip(one.flat, other.flat, strict=True))


def _equal_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_nested and not other.is_nested:
        return dense.equal(one, other, 0.0, 0.0)
    if one.is_nested != other.is_nested or len(one) != len(other):
        return False
    return all(dense.equal(a, b, 0.0, 0.0) for a, b in zip(one.unbind(), other.unbind(), strict=True))


def _equal_leaves(one: Any, other: Any) -> bool:
    try:
        same = one == other
        if isinstance(same, bool | np.bool_):
            return bool(same) or _both_nan(one, other)
        return bool(np.all(same))
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return False  # a class whose == raises says nothing about equality; the caller reports both values


def _both_nan(one: Any, other: Any) -> bool:
    return isinstance(one, np.floating | complex | np.complexfloating) and bool(np.isnan(one) and np.isnan(other))
