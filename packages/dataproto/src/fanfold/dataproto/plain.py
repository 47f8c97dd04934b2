"""Tensors and TensorDicts as plain tuples of names, shapes and bytes, and back."""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import jagged, leaves
from fanfold.dataproto.buffers import dtype_name, dtype_named, memory_of, tensor_over
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnTypeError, WireError
from fanfold.dataproto.jagged import Parts, Shared

PlainTensor: TypeAlias = tuple[str, tuple[int, ...], NDArray[np.uint8]]
_FIELDS = 3


def serialize_single_tensor(obj: Tensor) -> PlainTensor:
    """Return (dtype name, shape, bytes) of a dense tensor; a contiguous CPU tensor is not copied.

    Raises:
        ColumnTypeError: no dense tensor; `serialize_tensordict` takes jagged ones.

    >>> serialize_single_tensor(torch.tensor([1, 2], dtype=torch.uint8))
    ('uint8', (2,), array([1, 2], dtype=uint8))
    """
    _refuse_other_than_dense(obj)
    raw = memory_of(obj).reshape(-1).view(np.uint8) if obj.numel() else np.empty(0, dtype=np.uint8)
    return dtype_name(obj.dtype), tuple(obj.shape), raw


def _refuse_other_than_dense(obj: object) -> None:
    if isinstance(obj, Tensor) and obj.layout == torch.strided and not obj.is_nested and not obj.is_quantized:
        return
    layout = f" of the layout {obj.layout}" if isinstance(obj, Tensor) else ""
    raise ColumnTypeError(f"serialize_single_tensor got a {type(obj).__name__}{layout}; expected a dense tensor")


def deserialize_single_tensor(arr: Any) -> Tensor:
    r"""Return the tensor of (dtype name, shape, bytes), with memory of its own.

    Raises:
        WireError: not such a triple, or bytes of another length.

    >>> deserialize_single_tensor(("int16", (2,), b"\x01\x00\x02\x00"))
    tensor([1, 2], dtype=torch.int16)
    """
    try:
        name, shape, raw = arr
        sizes = tuple(int(size) for size in shape)
        memory = bytearray(memoryview(raw).cast("B")) if len(raw) else bytearray()
    except (TypeError, ValueError) as error:
        raise WireError(f"a serialized tensor is (dtype name, shape, bytes); this is not: {error}") from None
    return tensor_over(memory, dtype_named(name), sizes)


def serialize_tensordict(batch: TensorDictBase) -> tuple[tuple[int, ...], str | None, dict[str, Any]]:
    """Return (batch size, device, {name: column}) of a TensorDict.

    A dense column is the triple of `serialize_single_tensor`; others are tuples that start with "jagged", "tensordict",
    "value" or "values".

    >>> serialize_tensordict(TensorDict({"x": torch.zeros(2, dtype=torch.uint8)}, batch_size=[2]))
    ((2,), None, {'x': ('uint8', (2,), array([0, 0], dtype=uint8))})
    """
    shared = Shared()
    device = None if batch.device is None else str(batch.device)
    return tuple(batch.batch_size), device, {name: _plain(column, shared) for name, column in batch.items()}


def _plain(column: Column, shared: Shared) -> Any:
    if isinstance(column, Tensor):
        if not column.is_nested:
            return serialize_single_tensor(column)
        values, offsets, dim = jagged.parts(column, shared)
        return "jagged", dim, serialize_single_tensor(offsets), serialize_single_tensor(values)
    if column_rules.is_tree(column):
        return "tensordict", serialize_tensordict(column)
    if leaves.is_shared_value(column):
        return "value", column.data, tuple(column.batch_size)
    return "values", leaves.listed(column), tuple(column.batch_size)


def deserialize_tensordict(arr: Any) -> TensorDict:
    """Return the TensorDict that `serialize_tensordict` wrote, on the device it was on.

    Raises:
        WireError: not such a triple, or a device that this process does not have.

    >>> plain = TensorDict({"x": torch.arange(2)}, batch_size=[2])
    >>> deserialize_tensordict(serialize_tensordict(plain))["x"]
    tensor([0, 1])
    """
    try:
        batch_size, device, columns = arr
        made = TensorDict({name: _column(value) for name, value in dict(columns).items()}, batch_size=list(batch_size))
    except WireError:
        raise
    except (TypeError, ValueError, RuntimeError, LookupError) as error:
        raise WireError(f"a serialized TensorDict is (batch size, device, columns); this is not: {error}") from error
    if device is None:
        return made
    try:
        return made.to(torch.device(device))
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise WireError(f"the TensorDict was on {device!r}, which this process does not have: {error}") from error


def _column(value: Any) -> Column:
    kind = value[0]
    if kind == "jagged":
        _, dim, offsets, values = value
        return jagged.checked(Parts(deserialize_single_tensor(values), deserialize_single_tensor(offsets), dim))
    if kind == "tensordict":
        return deserialize_tensordict(value[1])
    if kind == "value":
        return NonTensorData(value[1], batch_size=list(value[2]))
    if kind == "values":
        return leaves.unlisted(value[1], value[2])
    return deserialize_single_tensor(value)
