from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from fanfold.dispatch import ArgumentError, PerRank, Replicate, Rows
from fanfold.dispatch.nested import batches_in, with_batches
from hypothesis import given
from hypothesis import strategies as st


class Pair(NamedTuple):
    batch: Any
    scale: float


@dataclass(frozen=True)
class State:
    tokens: Any
    steps: int
    derived: int = field(init=False, default=7)


def first(batch: Any, _: Any) -> Any:
    return batch[:1]


def test_batches_are_found_with_their_paths() -> None:
    value = {"prompt": Rows([1]), "pair": [Rows([2]), (3, Rows([4]))], "state": State(Rows([5]), 6)}
    assert [(found.path, found.batch) for found in batches_in(value, "x")] == [
        ("x['prompt']", Rows([1])),
        ("x['pair'][0]", Rows([2])),
        ("x['pair'][1][1]", Rows([4])),
        ("x['state'].tokens", Rows([5])),
    ]
    assert [found.path for found in batches_in(Rows([1]), "x")] == ["x"]
    assert list(batches_in("no batch", "x")) == []


def test_containers_keep_their_kind() -> None:
    rows = Rows([1, 2])
    assert with_batches([rows, 3], first) == [Rows([1]), 3]
    assert with_batches((rows, 3), first) == (Rows([1]), 3)
    pair = with_batches(Pair(rows, 0.5), first)
    assert type(pair) is Pair
    assert pair == Pair(Rows([1]), 0.5)
    state = with_batches(State(rows, 6), first)
    assert state == State(Rows([1]), 6)
    assert state.derived == 7
    ordered = with_batches(OrderedDict(b=rows, a=1), first)
    assert type(ordered) is OrderedDict
    assert list(ordered.items()) == [("b", Rows([1])), ("a", 1)]
    made = with_batches(defaultdict(list, x=rows), first)
    assert made == {"x": Rows([1])}
    assert made["new"] == []


def test_replicate_inside_a_container_goes_whole() -> None:
    value = {"batch": Rows([1, 2]), "all": Replicate(Rows([7, 8]))}
    assert [found.path for found in batches_in(value, "x")] == ["x['batch']"]
    assert with_batches(value, first) == {"batch": Rows([1]), "all": Rows([7, 8])}


def test_other_marks_inside_a_container_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"x\['a'\] is PerRank\(<list>\); inside a container only Replicate"):
        list(batches_in({"a": PerRank([1])}, "x"))


values = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=3).map(Rows) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=12,
)


@given(values)
def test_changing_nothing_gives_an_equal_value_and_leaves_the_original(value: Any) -> None:
    before = copy.deepcopy(value)
    assert with_batches(value, lambda batch, _: batch) == value
    with_batches(value, lambda batch, _: Rows([*batch, "more"]))
    assert value == before
