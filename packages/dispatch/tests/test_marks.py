from __future__ import annotations

import copy
import pickle

import pytest
from fanfold.dispatch import ArgumentError, PerRank, Replicate, Rows, Shard


def test_shard_reads_its_first_argument_as_axis_or_value() -> None:
    assert (Shard().has_value, Shard().axis) == (False, None)
    assert (Shard("ep").has_value, Shard("ep").axis) == (False, "ep")
    rows = Rows([1])
    mark = Shard(rows, "ep", weights=[2.0])
    assert (mark.value, mark.axis, mark.weights) == (rows, "ep", [2.0])


def test_none_is_a_value() -> None:
    assert Replicate(None).has_value
    assert not Replicate().has_value


def test_marks_say_what_they_hold() -> None:
    assert repr(Shard()) == "Shard()"
    assert repr(PerRank([1])) == "PerRank(<list>)"
    assert repr(Replicate(Rows())) == "Replicate(<Rows>)"


@pytest.mark.parametrize("mark", [Shard(Rows([1])), PerRank([1]), Replicate(1)])
def test_a_mark_never_travels(mark: Shard | PerRank | Replicate) -> None:
    with pytest.raises(ArgumentError, match=r"was left inside another value; mark the whole argument"):
        pickle.dumps({"inside": mark})
    with pytest.raises(ArgumentError):
        copy.deepcopy([mark])
