from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from fanfold.dataproto import ColumnTypeError, DataProto, MissingKeyError, SplitError
from fanfold.dataproto.balance import partition

weights_of_rows = st.lists(st.integers(0, 10_000), max_size=40)


@given(weights=weights_of_rows, pieces=st.integers(1, 9))
def test_every_row_once_and_the_spread_is_at_most_the_heaviest_row(weights: list[int], pieces: int) -> None:
    divided = partition(weights, pieces)
    assert len(divided) == pieces
    assert sorted(unit for piece in divided for unit in piece) == list(range(len(weights)))
    totals = [sum(weights[unit] for unit in piece) for piece in divided]
    assert max(totals) - min(totals) <= max(weights, default=0)


@given(groups=st.lists(st.lists(st.integers(0, 99), min_size=3, max_size=3), max_size=8))
def test_pieces_of_equal_size(groups: list[list[int]]) -> None:
    weights = [weight for group in groups for weight in group]
    divided = partition(weights, 3, equal_size=True)
    assert {len(piece) for piece in divided} == {len(groups)}
    assert sorted(unit for piece in divided for unit in piece) == list(range(len(weights)))


@given(batch=st.from_type(DataProto), pieces=st.integers(1, 5), data=st.data())
def test_results_come_back_in_order(
    batch: DataProto, pieces: int, data: st.DataObject, picture: Callable[[DataProto], Any]
) -> None:
    weights = data.draw(st.lists(st.integers(0, 50), min_size=len(batch), max_size=len(batch)))
    split = batch.balanced(pieces, weights)
    joined = DataProto.concat(split.pieces)
    assert picture(joined) == picture(batch[split.permutation])
    assert picture(split.restore(joined)) == picture(batch)
    assert split.weights == [
        sum(weights[row] for row in part.tolist())
        for part in split.permutation.split_with_sizes([len(piece) for piece in split.pieces])
    ]


@pytest.mark.parametrize(("rows", "ranks", "bound"), [(512, 8, 1.00001), (1024, 64, 1.001), (4096, 64, 1.00002)])
def test_token_counts_of_real_rollouts(rows: int, ranks: int, bound: float) -> None:
    # Lengths of generated answers are about log-normal and cut at a limit.
    lengths = np.random.default_rng(0).lognormal(6.5, 1.0, rows).astype(int).clip(1, 8192).tolist()
    totals = [sum(lengths[row] for row in piece) for piece in partition(lengths, ranks)]
    assert max(totals) / (sum(lengths) / ranks) < bound


def test_weights_from_columns() -> None:
    jagged = torch.nested.as_nested_tensor([torch.zeros(n) for n in (5, 1, 2, 2)], layout=torch.jagged)
    mask = torch.tensor([[1, 1], [1, 0], [0, 0], [1, 0]])
    batch = DataProto.from_dict(
        {"j": jagged, "mask": mask, "length": torch.tensor([3, 1, 1, 1])}, {"n": np.array([4, 2, 2, 2])}
    )
    for column, totals in (("j", [5.0, 5.0]), ("mask", [2.0, 2.0]), ("length", [3.0, 3.0]), ("n", [4.0, 6.0])):
        assert sorted(batch.balanced(2, column).weights) == totals
    assert batch.balanced(2, jagged).weights == [5.0, 5.0]


def test_groups_stay_together() -> None:
    batch = DataProto.from_dict({"x": torch.arange(6)}, {"uid": ["a", "b", "a", "c", "b", "a"]})
    split = batch.balanced(2, weights=[1] * 6, keep_groups="uid")
    assert [set(piece["uid"]) for piece in split.pieces] == [{"a"}, {"b", "c"}]
    assert [piece["x"].tolist() for piece in split.pieces] == [[0, 2, 5], [1, 3, 4]]
    same = batch.balanced(2, weights=[1] * 6, keep_groups=[0, 1, 0, 2, 1, 0])
    assert torch.equal(split.permutation, same.permutation)


def test_equal_sizes() -> None:
    batch = DataProto.from_dict({"x": torch.arange(4)})
    split = batch.balanced(2, [10, 1, 1, 1], equal_size=True)
    assert [len(piece) for piece in split.pieces] == [2, 2]
    with pytest.raises(SplitError, match="4 rows or groups cannot make 3 pieces of equal size"):
        batch.balanced(3, [1] * 4, equal_size=True)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], r"weights: the shape is \[2\]; expected 3 numbers, one for each row"),
        ([1, -2, 3], r"weights: row 1 has -2.0; expected finite numbers of at least 0"),
        ([1, 2, float("nan")], r"weights: row 2 has nan"),
        (["a", "b", "c"], r"weights: expected numbers, one for each row"),
        (["1", "2", "3"], r"weights: expected numbers, one for each row \(got values of <U1\)"),
        (np.array([1, "2", 3], dtype=object), r"weights: expected numbers, one for each row \(got values of object\)"),
        (3, r"weights: the shape is \[\]"),
    ],
)
def test_weights_that_are_none(weights: Any, message: str) -> None:
    with pytest.raises(SplitError, match=message):
        DataProto.from_dict({"x": torch.arange(3)}).balanced(2, weights)


def test_misuse() -> None:
    batch = DataProto.from_dict({"x": torch.arange(3)}, {"s": [[1], [1], [2]]})
    with pytest.raises(SplitError, match="pieces is 0"):
        batch.balanced(0, [1] * 3)
    with pytest.raises(MissingKeyError, match="no column 'tokens'"):
        batch.balanced(2, "tokens")
    with pytest.raises(SplitError, match="keep_groups has 2 entries; expected 3"):
        batch.balanced(2, [1] * 3, keep_groups=[1, 2])
    with pytest.raises(ColumnTypeError, match="keep_groups: row 0 cannot name a group"):
        batch.balanced(2, [1] * 3, keep_groups="s")
