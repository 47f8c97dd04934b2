from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

from fanfold.dataproto import ColumnError, ColumnTypeError, DataProto, DataProtoError, MergeError


def test_equal_length_lists_stay_one_object_for_each_row() -> None:
    batch = DataProto.from_dict({"x": torch.arange(3)}, {"ids": [[1, 2], [3, 4], [5, 6]]})
    ids = batch.non_tensor_batch["ids"]
    assert (ids.shape, str(ids.dtype), type(ids[1]).__name__, ids[1]) == ((3,), "object", "list", [3, 4])
    joined = DataProto.concat([batch, DataProto.from_dict({"x": torch.arange(2)}, {"ids": [[7], [8, 9, 10]]})])
    assert list(joined.non_tensor_batch["ids"]) == [[1, 2], [3, 4], [5, 6], [7], [8, 9, 10]]


def test_dictionaries_of_the_caller_stay_as_they_are() -> None:
    tensors, objects, meta = {"x": torch.zeros(2)}, {"s": ["a", "b"]}, {"cfg": {"a": [1]}}
    batch = DataProto.from_dict(tensors, objects, meta, auto_padding=True)
    batch.batch["y"] = torch.ones(2)  # type: ignore[index]
    batch.non_tensor_batch["t"] = np.zeros(2)
    batch.meta_info["cfg"]["a"].append(2)
    assert (list(tensors), list(objects), meta) == (["x"], ["s"], {"cfg": {"a": [1]}})
    assert type(objects["s"]) is list
    assert list(batch.meta_info) == ["cfg"]


@pytest.mark.parametrize(
    ("tensors", "objects", "message"),
    [
        ({"a": torch.zeros(2), "b": torch.zeros(3)}, {}, r"column 'b' has 3 rows; expected 2, as column 'a' says"),
        ({"a": torch.zeros(2)}, {"s": ["x"]}, r"non-tensor column 's' has 1 rows; expected 2, as the tensor columns"),
        ({}, {"s": ["x"], "t": ["y", "z"]}, r"non-tensor column 't' has 2 rows; expected 1, as column 's' have"),
        ({"a": torch.tensor(1.0)}, {}, r"column 'a' is a 0-d tensor; expected at least one dimension"),
        ({}, {"s": np.array(1)}, r"non-tensor column 's' is a 0-d array"),
        ({"a": torch.zeros(1)}, {"a": ["x"]}, r"column 'a' is a tensor column and a non-tensor column; expected one"),
        ({"a": torch.zeros(2, 2).to_sparse()}, {}, r"column 'a' has the layout torch.sparse_coo"),
    ],
)
def test_what_can_be_no_batch_is_refused(tensors: Any, objects: Any, message: str) -> None:
    with pytest.raises(ColumnError, match=message) as raised:
        DataProto.from_dict(tensors, objects)
    assert isinstance(raised.value, ValueError)
    assert isinstance(raised.value, DataProtoError)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_nested_tensors_of_the_old_layout_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)])
    with pytest.raises(ColumnError, match=r"column 'a' has the layout nested torch.strided; .* layout=torch.jagged"):
        DataProto(TensorDict({"a": nested}, batch_size=[2]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataProto.from_dict({"a": np.zeros(2)}), r"column 'a' is a ndarray; expected a torch.Tensor"),  # type: ignore[dict-item]
        (
            lambda: DataProto.from_dict({}, {"s": "abc"}),
            r"non-tensor column 's' is a str; expected a numpy array or a list",
        ),
        (lambda: DataProto.from_dict({}, {"s": torch.zeros(2)}), r"non-tensor column 's' is a Tensor"),
        (lambda: DataProto(batch={"a": torch.zeros(2)}), r"batch is a dict; expected a TensorDict or None"),  # type: ignore[arg-type]
        (lambda: DataProto(non_tensor_batch={"a": [1]}), r"non-tensor column 'a' is a list; expected a numpy array"),  # type: ignore[dict-item]
        (lambda: DataProto(non_tensor_batch=[1]), r"non_tensor_batch is a list; expected a dict"),  # type: ignore[arg-type]
        (lambda: DataProto(non_tensor_batch={1: np.zeros(1)}), r"non_tensor_batch has the key 1; expected names"),  # type: ignore[dict-item]
        (lambda: DataProto.from_dict([1]), r"tensors is a list; expected a dict"),  # type: ignore[arg-type]
        (lambda: DataProto.from_dict({1: torch.zeros(1)}), r"tensors has the key 1; expected names"),  # type: ignore[dict-item]
        (lambda: DataProto.from_dict(None, [1]), r"non_tensors is a list; expected a dict"),  # type: ignore[arg-type]
        (lambda: DataProto.from_dict(None, {"s": {1, 2}}), r"non-tensor column 's' is a set"),
        (lambda: DataProto.from_dict(None, None, [1]), r"meta_info is a list; expected a dict"),  # type: ignore[arg-type]
        (lambda: DataProto.from_single_dict([1]), r"data is a list; expected a dict"),  # type: ignore[arg-type]
        (lambda: DataProto(meta_info=3), r"meta_info is a int; expected a dict"),  # type: ignore[arg-type]
        (lambda: DataProto(merge={"a": "mode"}), r"the merge rule for 'a' is 'mode'; expected a function or one of"),
        (
            lambda: DataProto.from_single_dict({"a": 3}),
            r"'a' is a int; expected a tensor, a TensorDict or a numpy array",
        ),
        (lambda: DataProto.from_tensordict({"a": 3}), r"got a dict; expected a TensorDict"),  # type: ignore[arg-type]
        (lambda: DataProto.from_parts_of(3), r"a int has no batch, non_tensor_batch, meta_info"),
    ],
)
def test_values_of_the_wrong_type_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ColumnTypeError, match=message) as raised:
        make()
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize("sizes", [[], [2, 3]])
def test_exactly_one_batch_dimension(sizes: list[int]) -> None:
    with pytest.raises(ColumnError, match=r"batch has the batch size .*; expected exactly one batch dimension"):
        DataProto(TensorDict({}, batch_size=sizes))
    with pytest.raises(ColumnError, match="num_batch_dims is 2; expected 1"):
        DataProto.from_dict({"a": torch.zeros(2, 2)}, num_batch_dims=2)


def test_nothing_at_all_is_a_batch_of_no_rows() -> None:
    batch = DataProto()
    assert (len(batch), batch.batch, batch.non_tensor_batch, batch.meta_info, list(batch)) == (0, None, {}, {}, [])
    assert len(DataProto(TensorDict({}, batch_size=[3]))) == 3


def test_from_tensordict_sorts_values_into_parts() -> None:
    plain = TensorDict(
        {
            "x": torch.arange(2),
            "uid": NonTensorStack(NonTensorData("g"), NonTensorData("g")),
            "step": NonTensorData(3, batch_size=[2]),
        },
        batch_size=[2],
    )
    batch = DataProto.from_tensordict(plain, {"lr": 0.1})
    assert batch.batch is not None
    assert list(batch.batch.keys()) == ["x"]
    assert list(batch.non_tensor_batch["uid"]) == ["g", "g"]
    assert batch.meta_info == {"step": 3, "lr": 0.1}
    with pytest.raises(ColumnError, match="'step' is in meta_info and in the TensorDict"):
        DataProto.from_tensordict(plain, {"step": 4})


def test_only_objects_survive_a_tensordict() -> None:
    batch = DataProto.from_dict(None, {"s": ["a", [1], None]}, {"k": 1})
    assert DataProto.from_tensordict(batch.to_tensordict()).equals(batch)


def test_one_name_in_two_parts_makes_no_tensordict() -> None:
    batch = DataProto.from_dict({"x": torch.zeros(1)}, meta_info={"x": 1})
    with pytest.raises(MergeError, match="'x' is in batch and in meta_info"):
        batch.to_tensordict()


def test_a_lazily_stacked_tensordict_with_equal_rows_is_a_batch() -> None:
    rows = [TensorDict({"x": torch.full((2,), float(row))}, batch_size=[]) for row in range(3)]
    batch = DataProto(LazyStackedTensorDict(*rows, stack_dim=0))
    assert batch[1:]["x"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
    ragged = [TensorDict({"x": torch.zeros(row)}, batch_size=[]) for row in range(3)]
    with pytest.raises(ColumnError, match="lazily stacked TensorDict whose rows differ in shape"):
        DataProto(LazyStackedTensorDict(*ragged, stack_dim=0))


def test_a_batch_of_another_library() -> None:
    other = SimpleNamespace(
        batch=TensorDict({"x": torch.arange(2)}, batch_size=[2]),
        non_tensor_batch={"s": np.array(["a", "b"], dtype=object)},
        meta_info={"k": [1]},
    )
    batch = DataProto.from_parts_of(other)
    assert batch["x"].data_ptr() == other.batch["x"].data_ptr()
    batch.meta_info["k"].append(2)
    assert other.meta_info == {"k": [1]}


class Labelled(DataProto):
    """A subclass with an attribute of its own and another constructor."""

    def __init__(self, label: str) -> None:
        super().__init__(TensorDict({"x": torch.arange(4)}, batch_size=[4]), meta_info={"k": 1})
        self.label = label


def test_subclasses_keep_their_class_and_attributes() -> None:
    batch = Labelled("seven")
    made = [
        batch[1:],
        batch[[0]],
        batch.chunk(2)[1],
        batch.split(3)[0],
        batch.repeat(2),
        batch.select(),
        batch.clone(),
        batch.pop(meta_info_keys=["k"]),
        DataProto.concat([batch, batch]),
        next(batch.mini_batches(2)),
    ]
    assert {(type(other), other.label) for other in made} == {(Labelled, "seven")}
