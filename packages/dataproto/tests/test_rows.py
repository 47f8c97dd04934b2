from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from fanfold.dataproto import ColumnError, ColumnTypeError, DataProto, DataProtoItem, MissingKeyError, RowIndexError

if TYPE_CHECKING:
    from collections.abc import Callable


def sample() -> DataProto:
    return DataProto.from_dict({"x": torch.arange(4)}, {"s": list("wxyz")}, {"cfg": {"a": 1}})


def test_a_row() -> None:
    row = sample()[-1]
    assert isinstance(row, DataProtoItem)
    assert row.batch is not None
    assert row.batch["x"].item() == 3
    assert row.batch.batch_size == torch.Size([])
    assert (row.non_tensor_batch, row.meta_info) == ({"s": "z"}, {"cfg": {"a": 1}})
    assert [item.non_tensor_batch["s"] for item in sample()] == list("wxyz")
    assert sample()[torch.tensor(1)].non_tensor_batch == {"s": "x"}
    assert sample()[np.int64(1)].non_tensor_batch == {"s": "x"}


def test_rows_of_jagged_and_nested_columns() -> None:
    jagged = torch.nested.as_nested_tensor([torch.arange(3), torch.arange(1)], layout=torch.jagged)
    batch = DataProto.from_dict({"j": jagged, "t": TensorDict({"q": torch.ones(2, 2)}, batch_size=[2])})
    row = batch[1]
    assert row.batch is not None
    assert row.batch["j"].tolist() == [0]
    assert row.batch["t", "q"].tolist() == [1.0, 1.0]


def test_a_mask_leaves_a_plain_batch() -> None:
    picked = sample()[np.array([True, False, True, False])]
    assert type(len(picked)) is int
    assert [piece["x"].tolist() for piece in picked.chunk(2)] == [[0], [2]]
    assert [piece.non_tensor_batch["s"].tolist() for piece in picked.chunk(2)] == [["w"], ["y"]]
    assert len(sample()[[]]) == 0
    assert len(sample()[np.array([], dtype=np.int64)]) == 0


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (4, "row 4 is out of range; the batch has 4 rows"),
        (-5, "row -5 is out of range; the batch has 4 rows"),
        ([0, 4], "row 4 is out of range; the batch has 4 rows"),
        ([0, 10**30], "row 1000000000000000000000000000000 is out of range; the batch has 4 rows"),
        (np.array([2**64 - 1], dtype=np.uint64), "row 18446744073709551615 is out of range"),
        (torch.tensor([2**64 - 1], dtype=torch.uint64), "row 18446744073709551615 is out of range"),
        ([True, False], "the mask has 2 entries; expected 4, one for each row"),
        (torch.zeros(2, 2, dtype=torch.int64), r"row numbers have the shape \[2, 2\]; expected one dimension"),
    ],
)
def test_rows_that_are_not_there(index: Any, message: str) -> None:
    with pytest.raises(RowIndexError, match=message) as raised:
        sample()[index]
    assert isinstance(raised.value, IndexError)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (1.5, "indexed with a float"),
        ((0, 1), "indexed with a tuple"),
        (True, "indexed with a bool"),
        ([0, True], "mix 1 bools with 1 other values"),
        ([0.5], "not all integers"),
        (torch.tensor([0.5]), "row numbers are torch.float32"),
        (np.array(["a"]), "an array of <U1"),
        (torch.tensor(True), "indexed with a 0-d True"),
        (slice("a"), r"slice\(None, 'a', None\)"),
        (slice(None, None, 0), "slice step cannot be zero"),
    ],
)
def test_what_is_no_index(index: Any, message: str) -> None:
    with pytest.raises(ColumnTypeError, match=message):
        sample()[index]


def test_columns_by_name() -> None:
    batch = sample()
    assert batch["x"] is batch["x"]
    assert batch["s"] is batch.non_tensor_batch["s"]
    with pytest.raises(
        MissingKeyError, match=r"there is no column 'y'; the batch has \['x'\] and .* \['s'\]"
    ) as raised:
        batch["y"]
    assert isinstance(raised.value, KeyError)


def test_slices_are_views_and_lists_are_copies() -> None:
    batch = sample()
    batch[1:3]["x"].fill_(9)
    batch[[0]]["x"].fill_(7)
    batch[::2]["x"].add_(10)
    assert batch["x"].tolist() == [10, 9, 19, 3]
    batch[1:].meta_info["cfg"]["a"] = 2
    assert batch.meta_info == {"cfg": {"a": 1}}


def test_columns_that_share_their_lengths_still_do() -> None:
    offsets = torch.tensor([0, 3, 3, 7, 8])
    batch = DataProto.from_dict(
        {
            "a": torch.nested.nested_tensor_from_jagged(torch.arange(8), offsets),
            "b": torch.nested.nested_tensor_from_jagged(torch.full((8,), 2), offsets),
        }
    )
    for made in (
        batch[1:3],
        batch[[3, 0]],
        batch.repeat(2),
        *batch.chunk(2),
        DataProto.concat([batch, batch]),
        batch[::2],
    ):
        assert [row.tolist() for row in (made["a"] * made["b"]).unbind()] == [
            [2 * token for token in row.tolist()] for row in made["a"].unbind()
        ]


def test_a_reusable_buffer() -> None:
    batch = DataProto.from_dict({"x": torch.arange(4), "h": torch.zeros(4, dtype=torch.bfloat16)})
    buffer = DataProto.from_dict({"x": torch.zeros(9, dtype=torch.int64), "h": torch.zeros(9, dtype=torch.bfloat16)})
    makers: list[tuple[Callable[[], DataProto], list[int]]] = [
        (lambda: batch.select_idxs([3, 1], out=buffer), [3, 1]),
        (lambda: batch.repeat(2, out=buffer), [0, 0, 1, 1, 2, 2, 3, 3]),
        (lambda: DataProto.concat([batch, batch[:1]], out=buffer), [0, 1, 2, 3, 0]),
    ]
    for make, values in makers:
        made = make()
        assert made["x"].tolist() == values
        assert made["x"].data_ptr() == buffer["x"].data_ptr()
    with pytest.raises(
        ColumnError, match=r"out: column 'x' is torch.int64 \[9\]; expected torch.int64 with at least 12 rows"
    ):
        batch.repeat(3, out=buffer)
    with pytest.raises(ColumnError, match="out: column 'h' is none"):
        batch.select_idxs([0], out=buffer.select(["x"]))
