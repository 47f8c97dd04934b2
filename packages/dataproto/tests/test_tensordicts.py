from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from fanfold.dataproto import (
    ColumnError,
    ColumnTypeError,
    MergeError,
    MissingKeyError,
    NotEqualError,
    RowIndexError,
    SplitError,
)
from fanfold.dataproto import tensordicts as tu
from fanfold.dataproto.jagged import offsets_and_lengths, ragged_dim


def sample() -> TensorDict:
    jagged = torch.nested.as_nested_tensor([torch.arange(n) for n in (3, 1, 2, 0)], layout=torch.jagged)
    return tu.get_tensordict(
        {"x": torch.arange(4), "j": jagged, "uid": ["a", ["b"], None, "d"]}, {"step": 3, "cfg": {"a": 1}}
    )


def rows(made: TensorDict) -> list[Any]:
    tokens = [row.tolist() for row in made["j"].unbind()]
    return list(zip(made["x"].tolist(), tokens, tu.get(made, "uid"), strict=True))


ROWS = [(0, [0, 1, 2], "a"), (1, [0], ["b"]), (2, [0, 1], None), (3, [], "d")]


def test_values_and_columns() -> None:
    made = sample()
    assert made.batch_size == torch.Size([4])
    assert rows(made) == ROWS
    assert (tu.get(made, "step"), tu.get(made, "none", 7), tu.get_non_tensor_data(made, "cfg", None)) == (
        3,
        7,
        {"a": 1},
    )
    inside = TensorDict({"t": TensorDict({"q": torch.zeros(4)}, batch_size=[4])}, batch_size=[4])
    assert tu.get(inside, "t")["q"].shape == (4,)
    empty = tu.get_tensordict({"x": torch.zeros(0), "uid": []})
    assert empty.batch_size == torch.Size([0])
    assert tu.get_tensordict({}, {"a": 1}).batch_size == torch.Size([])


def test_get_tensordict_of_arrays_and_lists_of_tensors() -> None:
    made = tu.get_tensordict({"n": np.arange(2), "s": np.array(["a", "b"]), "r": [torch.zeros(1), torch.zeros(2)]})
    assert made["n"].tolist() == [0, 1]
    assert tu.get(made, "s") == ["a", "b"]
    assert made["r"].is_nested
    for wrong, message in (
        ({"x": torch.zeros(2), "y": torch.zeros(3)}, "column 'y' has 3 rows; expected 2, as column 'x' has"),
        ({"x": torch.tensor(1)}, "column 'x' is a 0-d tensor"),
    ):
        with pytest.raises(ColumnError, match=message):
            tu.get_tensordict(wrong)
    with pytest.raises(ColumnError, match="'x' is a column and a value"):
        tu.get_tensordict({"x": torch.zeros(1)}, {"x": 1})


def test_assigning() -> None:
    made = TensorDict({}, batch_size=[2])
    assert tu.assign_non_tensor(made, a=1, b=[1, [2]], c=NonTensorData([1, 2, 3], batch_size=[2]), d=(1, 2)) is made
    assert [tu.get(made, key) for key in "abcd"] == [1, [1, [2]], [1, 2, 3], (1, 2)]
    with pytest.raises(ColumnError, match=r"column 'e' has 3 values; expected one for each row of \[2\]"):
        tu.assign_non_tensor(made, e=[1, 2, 3])
    with pytest.raises(ColumnTypeError, match="assign_non_tensor got a dict"):
        tu.assign_non_tensor({}, a=1)  # type: ignore[arg-type]
    assert tu.unwrap_non_tensor_data(NonTensorData({"a": 1})) == {"a": 1}


def test_values_for_each_row_are_no_value_of_the_whole_batch() -> None:
    stack = NonTensorStack("a", "b")
    with pytest.raises(ColumnTypeError, match="'s' is a NonTensorStack, one value for each row"):
        tu.get_tensordict({"x": torch.ones(2)}, {"s": stack})
    with pytest.raises(ColumnTypeError, match="assign_non_tensor_stack"):
        tu.assign_non_tensor_data(TensorDict({}, batch_size=[2]), "s", stack)
    assert tu.get(tu.get_tensordict({"x": torch.ones(2), "s": stack}), "s") == ["a", "b"]


def test_taking_keys_out_is_all_or_nothing() -> None:
    made = sample()
    with pytest.raises(MissingKeyError, match="there is no 'z'"):
        tu.pop_keys(made, ["x", "z"])
    assert "x" in set(made.keys())
    popped = tu.pop_keys(made, ["x", "step"])
    assert (popped.batch_size, tu.get(popped, "step"), "x" in set(made.keys())) == (torch.Size([4]), 3, False)
    assert tu.get_keys(made, ["cfg"]).batch_size == torch.Size([4])
    assert (tu.pop(made, "uid"), tu.pop(made, "uid", 5)) == (["a", ["b"], None, "d"], 5)


def test_rows_of_every_kind_of_column() -> None:
    made = sample()
    assert [row for piece in tu.chunk_tensordict(made, 2) for row in rows(piece)] == ROWS
    assert rows(tu.concat_tensordict(tu.chunk_tensordict(made, 4))) == ROWS
    for index in ([3, 1], torch.tensor([3, 1]), [-1, -3]):
        assert rows(tu.index_select_tensor_dict(made, index)) == [ROWS[3], ROWS[1]]  # type: ignore[arg-type]
    assert rows(tu.index_select_tensor_dict(made, [False, True, False, True])) == [ROWS[1], ROWS[3]]  # type: ignore[arg-type]
    assert tu.index_select_tensor_dict(made, []).batch_size == torch.Size([0])  # type: ignore[union-attr]
    assert tu.index_select_tensor_dict(None, [1]) is None
    assert tu.get(tu.index_select_tensor_dict(made, [0]), "step") == 3  # type: ignore[arg-type]
    padded, added = tu.pad_to_divisor(made, 3)
    assert (added, rows(padded)) == (2, [*ROWS, *ROWS[:2]])
    assert rows(tu.unpad(padded, added)) == ROWS
    assert [rows(part) for part in tu.make_iterator(made, 2, 1)] == [ROWS[:2], ROWS[2:]]
    device = TensorDict({"x": torch.zeros(2)}, batch_size=[2], device="cpu")
    assert tu.contiguous(tu.concat_tensordict([device, device])).device == torch.device("cpu")


def test_rows_that_cannot_be() -> None:
    with pytest.raises(SplitError, match="4 rows cannot be divided into 3 equal chunks"):
        tu.chunk_tensordict(sample(), 3)
    with pytest.raises(SplitError, match="5 padding rows cannot be taken off 4 rows"):
        tu.unpad(sample(), 5)
    with pytest.raises(RowIndexError, match="row 4 is out of range"):
        tu.index_select_tensor_dict(sample(), [4])
    with pytest.raises(ColumnError, match=r"chunk_tensordict: the batch size is \[\]; expected one dimension"):
        tu.chunk_tensordict(TensorDict({}, batch_size=[]), 2)
    with pytest.raises(SplitError, match="cannot be divided into mini-batches of 3"):
        tu.make_iterator(sample(), 3, 1)


def test_concat_of_values_of_the_whole_batch() -> None:
    def holding(**values: Any) -> TensorDict:
        return tu.get_tensordict({"x": torch.zeros(1)}, values)

    joined = tu.concat_tensordict([holding(a=float("nan")), holding(a=float("nan"), b=2)])
    assert (joined.batch_size, tu.get(joined, "b")) == (torch.Size([2]), 2)
    with pytest.raises(MergeError, match=r"meta_info\['a'\] differs between batches \(part 0: 1, part 1: 2\)"):
        tu.concat_tensordict([holding(a=1), holding(a=2)])
    assert tu.get(tu.concat_tensordict([holding(a=1), holding(a=2)], merge_rules={"a": "list"}), "a") == [1, 2]
    with pytest.raises(MergeError, match=r"TensorDict 1 has the columns \['y'\]; expected \['x'\]"):
        tu.concat_tensordict([holding(), tu.get_tensordict({"y": torch.zeros(1)})])
    with pytest.raises(MergeError, match="concat_tensordict got nothing"):
        tu.concat_tensordict([])


def test_tensordicts_without_rows() -> None:
    def holding(value: Any) -> TensorDict:
        return tu.get_tensordict({}, {"a": value})

    assert tu.get(tu.concat_tensordict_with_none_bsz([holding(1), holding(1)]), "a") == 1
    with pytest.raises(MergeError, match=r"differs between batches"):
        tu.concat_tensordict_with_none_bsz([holding(1), holding(2)])
    with pytest.raises(MergeError, match=r"TensorDict 0 has the batch size \[4\]"):
        tu.concat_tensordict_with_none_bsz([sample()])
    with pytest.raises(MergeError, match="got nothing"):
        tu.concat_tensordict_with_none_bsz([])


def test_nested_tensors() -> None:
    rows_of = [torch.arange(6).view(2, 3), torch.arange(10).view(2, 5)]
    made = tu.nested_tensor_from_tensor_list(rows_of)
    assert ragged_dim(made) == 2
    first = tu.nested_tensor_from_tensor_list([torch.zeros(3, 2), torch.zeros(1, 2)], ragged_idx=1)
    assert ragged_dim(first) == 1
    equal = tu.nested_tensor_from_tensor_list([torch.zeros(2, 3), torch.zeros(2, 3)], ragged_idx=2)
    joined = tu.concat_nested_tensors([equal, made.float()])
    assert ragged_dim(joined) == 2
    assert [list(row.shape) for row in joined.unbind()] == [[2, 3], [2, 3], [2, 3], [2, 5]]
    for wrong, message in (
        (([torch.zeros(2)], 2), "ragged_idx is 2; expected 1 to 1"),
        (([torch.zeros(2, 1), torch.zeros(3, 2)], 2), r"row 1 is torch.float32 \[3, 2\]"),
        (([torch.zeros(2), torch.zeros(2).long()], 1), "row 1 is torch.int64"),
    ):
        with pytest.raises(ColumnError, match=message):
            tu.nested_tensor_from_tensor_list(*wrong)
    with pytest.raises(MergeError, match="no rows"):
        tu.nested_tensor_from_tensor_list([])
    with pytest.raises(MergeError, match="no tensors"):
        tu.concat_nested_tensors([])
    with pytest.raises(MergeError, match=r"entry 1 is torch.float32 with rows"):
        tu.concat_nested_tensors([made, first])
    with pytest.raises(ColumnTypeError, match="entry 0 is no jagged tensor"):
        tu.concat_nested_tensors([torch.zeros(2)])


def test_position_ids_of_three_dimensions() -> None:
    right = tu.nested_tensor_from_tensor_list([torch.arange(6).view(2, 3), torch.arange(10).view(2, 5)])
    lost = torch.nested.nested_tensor_from_jagged(right.values(), offsets_and_lengths(right)[0], jagged_dim=1)
    made = TensorDict({"position_ids": lost, "ids": right, "x": torch.zeros(2, 3)}, batch_size=[2])
    for key in ("position_ids", "ids", "x", "none"):
        tu.maybe_fix_3d_position_ids(made, key)
    assert [row.tolist() for row in made["position_ids"].unbind()] == [row.tolist() for row in right.unbind()]
    assert made["ids"] is right


def test_equality() -> None:
    tu.assert_tensordict_eq(sample(), sample())
    nan = TensorDict({"x": torch.tensor([float("nan")])}, batch_size=[1])
    tu.assert_tensordict_eq(nan, nan.clone())
    for one, other, message in (
        (TensorDict({"x": torch.zeros(2, 1)}, [2]), TensorDict({"x": torch.zeros(2, 3)}, [2]), "'x' differs"),
        (TensorDict({"x": torch.zeros(2)}, [2]), TensorDict({"x": torch.zeros(2).double()}, [2]), "'x' differs"),
        (TensorDict({"x": torch.zeros(2)}, [2]), TensorDict({}, [2]), r"the keys are \['x'\] and \[\]"),
        (TensorDict({}, [2]), TensorDict({}, [3]), r"the batch sizes are \[2\] and \[3\]"),
        (sample(), tu.assign_non_tensor(sample(), step=4), "'step' differs"),
    ):
        with pytest.raises(NotEqualError, match=message) as raised:
            tu.assert_tensordict_eq(one, other)
        assert isinstance(raised.value, AssertionError)


def test_rows_as_dicts() -> None:
    made = tu.list_of_dict_to_tensordict(
        [{"x": torch.zeros(2), "r": torch.zeros(1), "s": "a"}, {"x": torch.ones(2), "r": torch.zeros(3), "s": [1]}]
    )
    assert (made["x"].shape, made["r"].is_nested, tu.get(made, "s")) == ((2, 2), True, ["a", [1]])
    for wrong in ({"x": 1}, {"x": 1, "s": 2, "more": 3}):
        with pytest.raises(MergeError, match=r"row 1 has the dict columns .*; expected \['s', 'x'\]"):
            tu.list_of_dict_to_tensordict([{"x": 1, "s": 2}, wrong])
    with pytest.raises(MergeError, match="got no rows"):
        tu.list_of_dict_to_tensordict([])
