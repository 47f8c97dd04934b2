import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fanfold.dataproto import ColumnError, ColumnTypeError, DataProto, MergeError, MissingKeyError


def sample() -> DataProto:
    return DataProto.from_dict(
        {"x": torch.arange(2.0), "y": torch.ones(2)}, {"s": ["a", "b"], "n": np.arange(2)}, {"k": [1], "m": 2}
    )


def test_select_takes_names_and_refuses_unknown_ones() -> None:
    picked = sample().select("y", ["s"], ["m"])
    assert picked.batch is not None
    assert (list(picked.batch.keys()), list(picked.non_tensor_batch), picked.meta_info) == (["y"], ["s"], {"m": 2})
    for arguments, name in (
        ((["z"],), "batch_keys"),
        ((None, ["z"]), "non_tensor_batch_keys"),
        ((None, None, ["z"]), "meta"),
    ):
        with pytest.raises(MissingKeyError, match=f"{name}.*: there is no 'z'; there are"):
            sample().select(*arguments)
    with pytest.raises(MissingKeyError):
        DataProto.from_dict(None, {"s": ["a"]}).select(["x"])
    with pytest.raises(ColumnTypeError, match="batch_keys is 3"):
        sample().select(3)  # type: ignore[arg-type]


def test_select_of_no_tensor_column_keeps_the_rows() -> None:
    assert len(sample().select([], [])) == 2


def test_select_deep_copies() -> None:
    batch = sample()
    deep = batch.select(deepcopy=True)
    deep["x"].fill_(5)
    deep["n"].fill(5)
    assert batch["x"].tolist() == [0.0, 1.0]
    assert batch["n"].tolist() == [0, 1]


def test_pop_is_all_or_nothing(picture: Callable[[DataProto], Any]) -> None:
    batch = sample()
    before = picture(batch)
    for arguments in ((["x", "z"],), (["x"], ["z"]), (["x"], ["s"], ["z"])):
        with pytest.raises(MissingKeyError):
            batch.pop(*arguments)
        assert picture(batch) == before
    popped = batch.pop(["x"], ["s"], ["m"])
    assert popped["x"].tolist() == [0.0, 1.0]
    assert (list(popped.non_tensor_batch), popped.meta_info, batch.meta_info) == (["s"], {"m": 2}, {"k": [1]})
    assert list(batch.non_tensor_batch) == ["n"]
    batch.pop(["y"], ["n"])
    assert len(batch) == 2


def test_in_place_operations_leave_the_callers_tensordict_alone() -> None:
    batch = sample()
    mine = batch.batch
    assert mine is not None
    batch.pop(["x"])
    batch.rename("y", "z")
    batch.union(DataProto.from_dict({"w": torch.zeros(2)}))
    assert sorted(mine.keys()) == ["x", "y"]
    assert batch.batch is not None
    assert sorted(batch.batch.keys()) == ["w", "z"]


def test_rename_of_both_kinds(picture: Callable[[DataProto], Any]) -> None:
    batch = sample().rename(["x", "s"], ["y2", "t"])
    assert batch.batch is not None
    assert (sorted(batch.batch.keys()), sorted(batch.non_tensor_batch)) == (["y", "y2"], ["n", "t"])
    assert sorted(sample().rename(["x", "y"], ["y", "x"]).batch.keys()) == ["x", "y"]  # type: ignore[union-attr]
    before = picture(batch)
    for old, new, error in (
        (["y"], ["a", "b"], ColumnError),
        (["q"], ["a"], MissingKeyError),
        (["y"], ["n"], ColumnError),
        (["y", "y"], ["a", "b"], ColumnError),
        (None, ["a"], ColumnTypeError),
        ([1], ["a"], ColumnTypeError),
    ):
        with pytest.raises(error):
            batch.rename(old, new)  # type: ignore[arg-type]
        assert picture(batch) == before


def test_both_sides_of_a_bar_stay_as_they_are(picture: Callable[[DataProto], Any]) -> None:
    batch, other = sample(), DataProto.from_dict({"w": torch.zeros(2)}, meta_info={"w": 1})
    before = picture(batch), picture(other)
    both = batch | other
    assert both.columns == ["x", "y", "w", *batch.non_tensor_batch]
    assert (both["x"] is batch["x"], both["w"] is other["w"]) == (True, True)
    both.rename("w", "v").non_tensor_batch.clear()
    both.meta_info["w"] = 2
    assert (picture(batch), picture(other)) == before
    with pytest.raises(ColumnTypeError, match=r"union got a dict; expected a DataProto: what a future's get\(\)"):
        batch | {}  # type: ignore[operator]


def test_union_of_object_only_batches() -> None:
    one = DataProto(non_tensor_batch={"x": np.array(["1", "2"], dtype=object)})
    two = DataProto(non_tensor_batch={"y": np.array(["3", "4"], dtype=object)})
    assert one.union(two) is one
    assert (len(one), list(one["y"])) == (2, ["3", "4"])
    assert list(one.union(DataProto.from_dict({"t": torch.zeros(2)})).batch.keys()) == ["t"]  # type: ignore[union-attr]


def test_union_compares_arrays_of_any_rank_by_content() -> None:
    cube = np.arange(12.0).reshape(2, 3, 2)
    cube[0, 0, 0] = np.nan

    def holding(array: Any) -> DataProto:
        return DataProto.from_dict({"t": torch.zeros(2)}, {"g": array})

    assert holding(cube.copy()).union(holding(cube.copy()))["g"] is not cube
    other = cube.copy()
    other[1, 2, 1] += 1
    with pytest.raises(MergeError, match="column 'g' is in both batches with different values"):
        holding(cube).union(holding(other))


def test_union_with_values_that_have_no_truth() -> None:
    meta = {"mask": torch.tensor([1.0, float("nan")]), "table": np.arange(3), "lr": float("nan")}
    one = DataProto.from_dict(
        {"x": torch.tensor([float("nan"), 1.0])}, {"s": [[np.arange(2)], {"k": torch.ones(2)}]}, meta
    )
    assert len(one.union(copy.deepcopy(one))) == 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (DataProto.from_dict({"x": torch.zeros(3)}), "union of batches with 2 and 3 rows"),
        (DataProto.from_dict({"x": torch.zeros(2)}), "column 'x' is in both batches with different values"),
        (DataProto.from_dict({"x": torch.arange(2.0).double()}), "column 'x' is in both"),
        (DataProto.from_dict({"s": torch.zeros(2)}), "column 's' would be a tensor column and a non-tensor column"),
        (
            DataProto.from_dict({"q": torch.zeros(2)}, meta_info={"m": 3}),
            r"meta_info\['m'\] differs .*part 0: 2, part 1: 3",
        ),
    ],
)
def test_union_that_cannot_be(other: DataProto, message: str, picture: Callable[[DataProto], Any]) -> None:
    batch = sample()
    before = picture(batch)
    with pytest.raises(MergeError, match=message):
        batch.union(other)
    assert picture(batch) == before


def test_to_moves_tensors_only() -> None:
    batch = sample()
    assert batch.to("cpu") is batch
    assert batch.batch is not None
    assert batch.batch.device == torch.device("cpu")
    with pytest.raises(ColumnTypeError, match="expected a device"):
        batch.to("nowhere")
    assert len(DataProto.from_dict(None, {"s": ["a"]}).to("cpu")) == 1


def test_to_another_device_keeps_jagged_columns_together() -> None:
    offsets = torch.tensor([0, 1, 3])
    one = torch.nested.nested_tensor_from_jagged(torch.zeros(3), offsets)
    two = torch.nested.nested_tensor_from_jagged(torch.ones(3), offsets)
    moved = DataProto.from_dict({"a": one, "b": two}).to("meta")
    assert (moved["a"] + moved["b"]).device.type == "meta"


def test_edits_survive_pickling_and_to() -> None:
    import pickle  # noqa: PLC0415 (the act under test)

    batch = DataProto.from_dict({"a": torch.zeros(2, 1)})
    pickle.dumps(batch)
    assert batch.batch is not None
    batch.batch["b"] = torch.ones(2, 1)
    batch.batch["a"] += 5
    moved = batch.to("cpu")
    assert (moved["a"].flatten().tolist(), moved["b"].flatten().tolist()) == ([5, 5], [1, 1])


def test_a_part_changed_behind_the_batch_is_named() -> None:
    batch = sample()
    batch.non_tensor_batch["s"] = np.array(["a"], dtype=object)
    with pytest.raises(ColumnError, match="non-tensor column 's' has 1 rows; expected 2"):
        batch.chunk(2)


def test_equality() -> None:
    batch = sample()
    assert batch == batch.clone()
    assert batch != batch[[1, 0]]
    assert batch != 3
    assert not batch.equals(batch.select(["x"]))
    near = batch.clone()
    near["x"].add_(1e-7)
    assert not batch.equals(near)
    assert batch.equals(near, atol=1e-6)
    with pytest.raises(TypeError, match="unhashable"):
        hash(batch)
