from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import pytest
from fanfold.dispatch import batch_type_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*prototype stage.*:UserWarning")


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed here")


def watch(batch: Any) -> Any:
    batch_type = batch_type_of(batch)
    assert batch_type is not None
    assert batch_type.freeze is not None
    written = batch_type.freeze(batch)
    assert written() is None
    return written


@pytest.mark.parametrize("dtype", ["float64", "object", "U3", "datetime64[s]", "bool"])
def test_a_write_into_an_array_is_noticed(dtype: str) -> None:
    array = np.zeros((2, 2)).astype(dtype)
    written = watch(array[:, 1])  # a column, whose memory has gaps
    array[0, 0] = 1
    assert written() is None
    array[0, 1] = 1
    assert written() == "ndarray of shape (2) was written to"


@needs("torch")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64", "uint8"])
def test_a_write_into_a_tensor_is_noticed(dtype: str) -> None:
    torch = importlib.import_module("torch")
    tensor = torch.zeros(3, 2, dtype=getattr(torch, dtype))
    written, empty = watch(tensor.T), watch(tensor[:0])
    tensor[2, 1] = 1
    assert written() == "Tensor of shape (2, 3) was written to"
    assert empty() is None


@needs("torch")
def test_a_write_into_a_jagged_tensor_is_noticed() -> None:
    torch = importlib.import_module("torch")
    values = torch.zeros(3)
    written = watch(torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 1, 3])))
    values[2] = 1
    assert written().startswith("NestedTensor of shape (2, ")


@needs("tensordict")
def test_writes_into_a_tensordict_are_told_by_column() -> None:
    torch, tensordict = importlib.import_module("torch"), importlib.import_module("tensordict")
    inner = tensordict.TensorDict({"y": torch.zeros(2, 3)}, batch_size=[2])
    batch = tensordict.TensorDict({"x": torch.zeros(2), "n": inner, "z": torch.zeros(2)}, batch_size=[2])
    batch["text"] = tensordict.NonTensorStack("a", "b")
    written = watch(batch)
    batch["n", "y"][1, 2] = 5
    batch["z"] += 1
    assert written() == "columns n.y, z of the TensorDict were written to"
    del batch["z"]
    assert written() == "the TensorDict had columns x, n.y, z, and has x, n.y now"


@needs("pandas")
def test_writes_into_a_frame_are_told_by_column() -> None:
    pandas = importlib.import_module("pandas")
    frame = pandas.DataFrame({"x": [1.0, float("nan")], "name": ["a", None], "cells": [[1], np.zeros(2)]}, index=[7, 8])
    written = watch(frame)
    frame.loc[8, "x"] = 2.0
    frame.loc[7, "name"] = "b"
    assert written() == "columns x, name of the DataFrame were written to"
    frame["more"] = 1
    assert written() == "the DataFrame had columns x, name, cells, and has x, name, cells, more now"


@needs("pandas")
def test_another_index_is_a_write() -> None:
    pandas = importlib.import_module("pandas")
    frame = pandas.DataFrame({"x": [1, 2]})
    written = watch(frame)
    frame.index = pandas.Index([5, 6])
    assert written() == "columns x of the DataFrame were written to"


@needs("pyarrow")
def test_nobody_can_write_into_a_table() -> None:
    batch_type = batch_type_of(importlib.import_module("pyarrow").table({"x": [1]}))
    assert batch_type is not None
    assert batch_type.freeze is None
