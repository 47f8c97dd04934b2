from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from fanfold.dispatch import CollectError, RegistrationError
from fanfold.dispatch.merge import RULES, check_merge, equal, merge_values
from hypothesis import given
from hypothesis import strategies as st

NAN = float("nan")


@pytest.mark.parametrize(
    ("rule", "merged"),
    [("first", 3), ("last", 4), ("mean", 8 / 3), ("sum", 8), ("min", 1), ("max", 4), ("list", [3, 1, 4])],
)
def test_rules(rule: str, merged: Any) -> None:
    assert merge_values("T.f()", rule, [(0, 3), (2, 1), (5, 4)]) == merged


def test_the_rule_same_compares_by_content() -> None:
    assert merge_values("T.f()", "same", [(0, {"a": [NAN, (1,)]}), (1, {"a": [NAN, (1,)]})])["a"][1] == (1,)
    array = np.array([1.0, NAN])
    assert merge_values("T.f()", "same", [(0, array), (1, array.copy())]) is array
    with pytest.raises(
        CollectError,
        match=r"T\.f\(\): merge rule 'same' cannot merge rank 0: 1, rank 3: 2 \(they differ; choose another rule",
    ) as caught:
        merge_values("T.f()", "same", [(0, 1), (3, 2)])
    assert caught.value.results == {0: 1, 3: 2}


def test_rules_by_key_and_lists_for_the_rest() -> None:
    values = [(0, {"loss": 1.0, "tokens": 10, "host": "a"}), (1, {"loss": 3.0, "tokens": 30, "extra": 5})]
    merged = merge_values("T.f()", {"loss": "mean", "tokens": "sum", "absent": "max"}, values)
    assert merged == {"loss": 2.0, "tokens": 40, "host": ["a"], "extra": [5]}


def test_a_rule_may_be_a_function() -> None:
    assert merge_values("T.f()", sorted, [(0, 3), (1, 1)]) == [1, 3]
    assert merge_values("T.f()", {"x": len}, [(0, {"x": 3}), (1, {"x": 1})]) == {"x": 2}


def test_summing_changes_no_rank_s_value() -> None:
    first = np.array([1, 2])
    merged = merge_values("T.f()", "sum", [(0, first), (1, np.array([10, 20]))])
    assert merged.tolist() == [11, 22]
    assert first.tolist() == [1, 2]
    lists = [[1], [2]]
    assert merge_values("T.f()", "sum", list(enumerate(lists))) == [1, 2]
    assert lists == [[1], [2]]


def test_conflicts_name_key_ranks_and_values() -> None:
    values = [(0, {"loss": 1.0}), (4, {"loss": "high"})]
    with pytest.raises(
        CollectError, match=r"T\.f\(\), key 'loss': merge rule 'mean' cannot merge rank 0: 1\.0, rank 4: 'high'"
    ):
        merge_values("T.f()", {"loss": "mean"}, values)
    with pytest.raises(
        CollectError, match=r"merge= has rules by key, and rank 1 returned int, expected a dict"
    ) as caught:
        merge_values("T.f()", {"loss": "mean"}, [(0, {"loss": 1}), (1, 7)])
    assert caught.value.results == {0: {"loss": 1}, 1: 7}


def test_rules_are_checked_and_copied_beforehand() -> None:
    rules = {"loss": "mean"}
    checked = check_merge("f", rules)
    rules["loss"] = "sum"
    assert checked == {"loss": "mean"}
    assert check_merge("f", None) is None
    names = ", ".join(RULES)
    with pytest.raises(RegistrationError, match=rf"f: merge rule is 'avg', expected one of {names}, or a function"):
        check_merge("f", "avg")
    with pytest.raises(RegistrationError, match="f: merge rule of 'loss' is None, expected one of"):
        check_merge("f", {"loss": None})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        ([1], (1,)),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        (np.array([1]), np.array([1.0])),
        (NAN, 1.0),
        ("x", "y"),
    ],
)
def test_different_values_differ(a: Any, b: Any) -> None:
    assert not equal(a, b)


@given(st.lists(st.floats(allow_infinity=False, width=32), min_size=1, max_size=5))
def test_the_mean_is_the_mean(values: list[float]) -> None:
    merged = merge_values("f", "mean", list(enumerate(values)))
    assert equal(merged, math.fsum(values) / len(values)) or merged == pytest.approx(sum(values) / len(values))
