from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fanfold.dataproto import ColumnTypeError, DataProto, SplitError


def numbered(rows: int) -> DataProto:
    return DataProto.from_dict({"i": torch.arange(rows)}, {"s": [str(row) for row in range(rows)]}, {"k": [1]})


def numbers(batches: Any) -> list[list[int]]:
    return [batch["i"].tolist() for batch in batches]


@given(rows=st.integers(0, 600), size=st.integers(1, 9), epochs=st.integers(0, 3), drop=st.booleans())
def test_unshuffled(rows: int, size: int, epochs: int, drop: bool) -> None:
    batches = numbered(rows).mini_batches(size, epochs=epochs, drop_last=drop)
    every = [list(range(start, min(start + size, rows))) for start in range(0, rows, size)]
    epoch = [part for part in every if len(part) == size or not drop]
    assert len(batches) == len(epoch) * epochs
    assert numbers(batches) == epoch * epochs
    assert next(batches, None) is None


@given(
    rows=st.integers(0, 40),
    size=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    stop=st.integers(0, 20),
    shuffle=st.booleans(),
)
def test_going_on_from_a_position(rows: int, size: int, seed: int, stop: int, shuffle: bool) -> None:
    whole = numbers(numbered(rows).mini_batches(size, epochs=3, shuffle=shuffle, seed=seed))
    first = numbered(rows).mini_batches(size, epochs=3, shuffle=shuffle, seed=seed)
    done = [next(first, None) for _ in range(stop)]
    again = numbered(rows).mini_batches(size, epochs=3, shuffle=shuffle)
    again.load_state_dict(first.state_dict())
    assert numbers(filter(None, done)) + numbers(again) == whole


def test_shuffled_epochs_have_every_row_once_in_another_order() -> None:
    found = numbers(numbered(20).mini_batches(20, epochs=2, shuffle=True, seed=3))
    assert sorted(found[0]) == sorted(found[1]) == list(range(20))
    assert found[0] != found[1]
    assert found == numbers(numbered(20).mini_batches(20, epochs=2, shuffle=True, seed=3))
    assert found[0] != numbers(numbered(20).mini_batches(20, shuffle=True, seed=4))[0]


def test_rows_stay_aligned_and_metadata_apart() -> None:
    batch = numbered(5)
    for part in batch.mini_batches(2, shuffle=True):
        assert [str(number) for number in part["i"].tolist()] == list(part["s"])
        part.meta_info["k"].append(2)
    assert batch.meta_info == {"k": [1]}


def test_the_users_random_state_is_neither_read_nor_changed() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    unseeded = [numbers(numbered(50).mini_batches(50, shuffle=True)) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert unseeded[0] != unseeded[1]


def test_make_iterator() -> None:
    assert numbers(numbered(4).make_iterator(2, epochs=2)) == [[0, 1], [2, 3]] * 2
    shuffled = numbers(numbered(4).make_iterator(2, 1, seed=1, dataloader_kwargs={"shuffle": True}))
    assert sorted(shuffled[0] + shuffled[1]) == [0, 1, 2, 3]
    assert numbers(numbered(5).make_iterator(2, 1, dataloader_kwargs={"drop_last": True})) == [[0, 1], [2, 3]]
    assert [len(part) for part in DataProto.from_dict(None, {"s": ["a", "b"]}).make_iterator(1, 1)] == [1, 1]
    with pytest.raises(SplitError, match="5 rows cannot be divided into mini-batches of 2"):
        numbered(5).make_iterator(2, 1)
    with pytest.raises(ColumnTypeError, match=r"dataloader_kwargs has \['batch_size', 'num_workers'\]"):
        numbered(4).make_iterator(2, 1, dataloader_kwargs={"num_workers": 1, "batch_size": 3})
    with pytest.raises(SplitError, match="mini_batch_size is 0"):
        numbered(4).mini_batches(0)


def test_positions_of_another_iterator() -> None:
    batches = numbered(4).mini_batches(2)
    state = batches.state_dict()
    for change, message in (
        ({"rows": 5}, "saved with rows 5; this iterator has 4"),
        ({"mini_batch_size": 1}, "saved with mini_batch_size 1"),
        ({"epoch": 9}, "epoch 9, step 0, which this iterator does not have"),
        ({"more": 1}, "the position has the keys"),
    ):
        with pytest.raises(SplitError, match=message):
            batches.load_state_dict({**state, **change})
