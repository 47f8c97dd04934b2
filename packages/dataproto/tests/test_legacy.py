import numpy as np
import pytest
import torch
from tensordict import TensorDict

from fanfold.dataproto import (
    ColumnTypeError,
    MergeError,
    list_of_dict_to_dict_of_list,
    position_ids_from_mask,
    union_numpy_dict,
    union_tensor_dict,
)


def test_union_tensor_dict_is_all_or_nothing() -> None:
    one = TensorDict({"a": torch.tensor([float("nan"), 1.0])}, batch_size=[2])
    two = TensorDict({"b": torch.ones(2), "a": torch.tensor([float("nan"), 1.0])}, batch_size=[2])
    assert union_tensor_dict(one, two) is one
    assert sorted(one.keys()) == ["a", "b"]
    three = TensorDict({"c": torch.ones(2), "a": torch.zeros(2)}, batch_size=[2])
    with pytest.raises(MergeError, match="column 'a' differs"):
        union_tensor_dict(one, three)
    assert sorted(one.keys()) == ["a", "b"]
    with pytest.raises(MergeError, match=r"batch sizes \[2\] and \[3\]"):
        union_tensor_dict(one, TensorDict({}, batch_size=[3]))
    with pytest.raises(ColumnTypeError, match="union_tensor_dict got a dict; expected a TensorDict"):
        union_tensor_dict(one, {"a": 1})  # type: ignore[arg-type]


def test_union_numpy_dict_is_all_or_nothing() -> None:
    one = {"a": np.array([[np.arange(2)], None], dtype=object)}
    union_numpy_dict(one, {"a": np.array([[np.arange(2)], None], dtype=object), "b": np.ones(2)})
    assert sorted(one) == ["a", "b"]
    with pytest.raises(MergeError, match="'b' differs: array"):
        union_numpy_dict(one, {"c": np.ones(2), "b": np.zeros(2)})
    with pytest.raises(MergeError, match="'c' has 3 rows, 'a' has 2; expected as many in every array"):
        union_numpy_dict(one, {"c": np.ones(3)})
    with pytest.raises(ColumnTypeError, match="'b' is a ndarray and a list"):
        union_numpy_dict(one, {"b": [1]})  # type: ignore[dict-item]
    assert sorted(one) == ["a", "b"]


def test_dicts_must_have_the_same_keys() -> None:
    assert list_of_dict_to_dict_of_list([]) == {}
    assert list_of_dict_to_dict_of_list([{"a": 1, "b": 2}, {"b": 3, "a": 4}]) == {"a": [1, 4], "b": [2, 3]}
    for wrong in ({}, {"a": 1, "c": 2}):
        with pytest.raises(MergeError, match=r"dict 1 has the keys .*; expected \['a'\], as dict 0 has"):
            list_of_dict_to_dict_of_list([{"a": 1}, wrong])


def test_position_ids() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 2, 2], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]
    for kind in (torch.int64, torch.bool, torch.float32):
        made = position_ids_from_mask(mask.to(kind))
        assert (made.tolist(), made.dtype) == (expected, torch.int64)
