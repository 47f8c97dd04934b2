from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from fanfold.dispatch import ArgumentError, PerRank, Replicate
from fanfold.dispatch.lists import is_list, lists_scatter
from fanfold.dispatch.signature import argument


class Pair(NamedTuple):
    a: int
    b: int


class Refs(list[Any]):
    """Results of another call are lists with methods on top."""


@pytest.mark.parametrize("value", [[], [1], (1, 2), (), Refs([1])])
def test_lists_and_plain_tuples_are_lists(value: Any) -> None:
    assert is_list(value)


@pytest.mark.parametrize("value", [Pair(1, 2), "ab", {1: 2}, range(2), None, 3])
def test_records_and_other_sequences_are_single_values(value: Any) -> None:
    assert not is_list(value)


def scatters(*values: Any) -> bool:
    return lists_scatter("T.f()", "lists_or_whole", [argument(f"a{i}", value) for i, value in enumerate(values)])


def test_only_lists_scatter() -> None:
    assert scatters([1], (2,))
    assert not scatters(1, "x")
    assert not scatters()


def test_none_and_marked_arguments_do_not_count() -> None:
    assert scatters([1], None)
    assert not scatters(None)
    assert not scatters(Replicate([1]), PerRank([2]), 3)
    assert scatters(Replicate(3), [1])


def test_a_mix_is_refused_and_names_the_ways_out() -> None:
    with pytest.raises(
        ArgumentError,
        match=r"T\.f\(\): got lists \(a0\) and other values \(a1, a3\) in one call, expected all lists or none; say "
        r"PerRank\(x\) for one item per rank, or Replicate\(x\)",
    ):
        scatters([1], 2, None, "x")
