"""Adapters of libraries that are installed; the class-name look-up itself is shown with a stand-in library."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from fanfold.dispatch import Dispatch, batch_type_of, register, run_inline
from fanfold.dispatch.adapters import ADAPTERS


class Worker:
    @register(Dispatch.DP_COMPUTE_PROTO)
    def same(self, batch: Any) -> Any:
        return batch

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def padded(self, batch: Any) -> Any:
        return batch

    @register(Dispatch.DP_COMPUTE_PROTO, balance=lambda batch: list(range(len(batch))))
    def balanced(self, batch: Any) -> Any:
        return batch


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed here")


@pytest.mark.parametrize("method", ["same", "padded", "balanced"])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("dtype", ["int64", "float32", "bool", "object", "U3", "datetime64[s]"])
def test_numpy_arrays_come_back_in_order(method: str, rows: int, dtype: str) -> None:
    array = np.arange(rows).astype(dtype) if dtype != "bool" else np.arange(rows) % 2 == 0
    before = array.copy()
    result = run_inline(method, [Worker()] * 4, array)
    assert result.dtype == array.dtype
    assert result.tolist() == before.tolist() == array.tolist()


def test_numpy_operations() -> None:
    array = np.arange(6).reshape(3, 2)
    batch_type = batch_type_of(array)
    assert batch_type is not None
    assert batch_type.rows(array, 1, 3).base is not None  # a view, not a copy
    assert batch_type.nbytes is not None
    assert batch_type.nbytes(array) == 48
    assert batch_type.pick(array, [2, 0]).tolist() == [[4, 5], [0, 1]]


def test_an_array_without_dimensions_goes_whole() -> None:
    assert batch_type_of(np.array(3)) is None
    assert batch_type_of(np.float32(3)) is None


def test_masks_are_kept() -> None:
    masked = np.ma.masked_array([1, 2, 3], mask=[True, False, True])
    result = run_inline("padded", [Worker(), Worker()], masked)
    assert result.tolist() == [None, 2, None]
    assert result.mask.tolist() == [True, False, True]


class Subclass(np.ndarray):
    pass


def test_subclasses_of_an_array_are_arrays() -> None:
    assert batch_type_of(np.arange(2).view(Subclass)) is batch_type_of(np.arange(2))


@needs("torch")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_tensors_come_back_in_order() -> None:
    torch = importlib.import_module("torch")

    tensor = torch.arange(10).reshape(5, 2)
    for method in ("same", "padded", "balanced"):
        result = run_inline(method, [Worker()] * 4, tensor)
        assert torch.equal(result, tensor)
    empty = run_inline("same", [Worker()] * 2, torch.zeros(0, 3))
    assert tuple(empty.shape) == (0, 3)
    assert batch_type_of(torch.tensor(3.0)) is None
    batch_type = batch_type_of(torch.nn.Parameter(torch.zeros(2)))
    assert batch_type == batch_type_of(tensor)
    assert batch_type is not None
    assert batch_type.nbytes is not None
    assert batch_type.nbytes(tensor) == 80


@needs("tensordict")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensordicts_come_back_in_order() -> None:
    torch = importlib.import_module("torch")
    TensorDict = importlib.import_module("tensordict").TensorDict  # noqa: N806  a class

    batch = TensorDict(
        {"x": torch.arange(5), "n": TensorDict({"y": torch.zeros(5, 2)}, batch_size=[5])}, batch_size=[5]
    )
    for method in ("same", "padded", "balanced"):
        result = run_inline(method, [Worker()] * 4, batch)
        assert result["x"].tolist() == [0, 1, 2, 3, 4]
        assert tuple(result["n", "y"].shape) == (5, 2)
    batch_type = batch_type_of(batch)
    assert batch_type is not None
    assert batch_type.narrowed(batch, ["x", "absent"]).keys() == {"x"}
    assert batch_type.column is not None
    assert batch_type.column(batch, "x").tolist() == [0, 1, 2, 3, 4]
    assert batch_type.nbytes is not None
    assert batch_type.nbytes(batch) == 80
    assert batch_type_of(TensorDict({"x": torch.tensor(1)}, batch_size=[])) is None


@needs("pandas")
def test_pandas_frames_come_back_in_order() -> None:
    pd = importlib.import_module("pandas")

    frame = pd.DataFrame({"x": [3, 1, 2], "name": list("abc")}, index=[7, 8, 9])
    for method in ("same", "padded", "balanced"):
        pd.testing.assert_frame_equal(run_inline(method, [Worker()] * 2, frame), frame)
    batch_type = batch_type_of(frame)
    assert batch_type is not None
    assert list(batch_type.narrowed(frame, ["name"]).columns) == ["name"]


@needs("pyarrow")
def test_arrow_tables_come_back_in_order() -> None:
    pa = importlib.import_module("pyarrow")

    arrow = pa.table({"x": [3, 1, 2], "name": list("abc")})
    for method in ("same", "padded", "balanced"):
        assert run_inline(method, [Worker()] * 2, arrow).to_pydict() == arrow.to_pydict()
    batch_type = batch_type_of(arrow)
    assert batch_type is not None
    assert batch_type.narrowed(arrow, ["name"]).column_names == ["name"]
    assert batch_type.column is not None
    assert batch_type.column(arrow, "x") == [3, 1, 2]


def test_the_classes_are_those_that_the_libraries_name() -> None:
    assert set(ADAPTERS) == {
        "numpy.ma.MaskedArray",
        "numpy.ma.core.MaskedArray",
        "numpy.ndarray",
        "pandas.DataFrame",
        "pandas.core.frame.DataFrame",
        "pyarrow.lib.Table",
        "tensordict.base.TensorDictBase",
        "torch.Tensor",
    }


STAND_IN = """
import sys, types

class Tensor(list):
    shape = (4,)
    device = "cpu"
    is_nested = False
    def dim(self):
        return 1
    def __getitem__(self, key):
        return Tensor(list.__getitem__(self, key)) if isinstance(key, slice) else list.__getitem__(self, key)

Tensor.__module__ = "torch"
torch = types.ModuleType("torch")
torch.Tensor = Tensor
torch.cat = lambda parts: Tensor(item for part in parts for item in part)
sys.modules["torch"] = torch

from fanfold.dispatch import batch_type_of
batch_type = batch_type_of(Tensor([1, 2, 3, 4]))
assert batch_type.rows(Tensor([1, 2, 3, 4]), 1, 3) == [2, 3]
assert batch_type.concat([Tensor([1]), Tensor([2])]) == [1, 2]
assert "numpy" not in sys.modules
"""


def test_a_class_name_is_enough() -> None:
    done = subprocess.run([sys.executable, "-c", STAND_IN], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
