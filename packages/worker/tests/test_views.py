from __future__ import annotations

from typing import Any

import pytest
from fanfold.dispatch import Mesh, MeshError
from fanfold.worker import GroupUsageError
from fanfold.worker.views import chosen_ranks
from hypothesis import given
from hypothesis import strategies as st

MESH = Mesh.from_sizes("train", {"tp": 2, "dp": 3})


@given(st.sets(st.integers(0, 30), min_size=1), st.data())
def test_numbers_and_slices_choose_as_a_list_does(ranks: set[int], data: st.DataObject) -> None:
    there = sorted(ranks)
    number = data.draw(st.integers(-len(there), len(there) - 1))
    assert chosen_ranks(number, there, None, {}) == (there[number],)
    cut = slice(data.draw(st.none() | st.integers(-5, 5)), data.draw(st.none() | st.integers(-5, 5)))
    if there[cut]:
        assert chosen_ranks(cut, there, None, {}) == tuple(there[cut])
    assert chosen_ranks(None, there, None, {}) == tuple(there)
    several = data.draw(st.lists(st.integers(0, len(there) - 1), min_size=1, unique=True))
    assert chosen_ranks(several, there, None, {}) == tuple(sorted(there[one] for one in several))


def test_coordinates() -> None:
    everyone = range(6)
    assert chosen_ranks(None, everyone, MESH, {"dp": 1}) == (2, 3)
    assert chosen_ranks(None, everyone, MESH, {"dp": [0, 2], "tp": 1}) == (1, 5)
    assert chosen_ranks(lambda at: at["dp"] > at["tp"], everyone, MESH, {}) == (2, 4, 5)
    assert chosen_ranks(None, [0, 3], MESH, {"tp": 1}) == (3,)


@pytest.mark.parametrize(
    ("which", "coordinates", "message"),
    [
        (6, {}, r"ranks \[6\] are not different numbers of 0 to 5"),
        ([1, 1], {}, "not different numbers"),
        ([1, -5], {}, "not different numbers"),
        (slice(4, 2), {}, "no rank of .* is left by slice"),
        (None, {"dp": 7}, "is left by dp=7"),
        (lambda _: False, {}, "is left by"),
    ],
)
def test_choices_that_leave_nothing(which: Any, coordinates: dict[str, Any], message: str) -> None:
    mesh = MESH if coordinates or callable(which) else None
    with pytest.raises(GroupUsageError, match=message):
        chosen_ranks(which, range(6), mesh, coordinates)


def test_predicate_needs_a_mesh() -> None:
    with pytest.raises(GroupUsageError, match="say of which mesh"):
        chosen_ranks(lambda _: True, range(6), None, {})


def test_unknown_axis() -> None:
    with pytest.raises(MeshError, match="no axis 'pp'"):
        chosen_ranks(None, range(6), MESH, {"pp": 0})
