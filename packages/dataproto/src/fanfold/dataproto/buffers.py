"""Tensors as plain memory and back: views, no copies, for every dtype.

A tensor made from memory that must not be written (bytes, a mapped file, shared memory of another process) is an
ordinary tensor to torch, which knows no read-only tensors. Whoever calls `tensor_over` keeps track of that.
"""

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fanfold.dataproto import dense
from fanfold.dataproto.dense import COMPUTABLE
from fanfold.dataproto.errors import WireError
from fanfold.dataproto.objects import Array

_NUMPY_DTYPES = COMPUTABLE - {torch.bfloat16}
# Quantized dtypes are not among them: a tensor made of foreign bytes as one of those has no quantizer, and ends the
# process when it is touched.
_DTYPES = {
    name: value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not (name := str(value).removeprefix("torch.")).startswith("q")
}


class TensorSpec(NamedTuple):
    """How memory is to be read: dtype name, shape, and the position of the buffer (-1: no bytes at all)."""

    dtype: str
    shape: tuple[int, ...]
    position: int


def dtype_named(name: object) -> torch.dtype:
    """Return the dtype of this name, or refuse it."""
    found = _DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise WireError(f"the dtype {name!r} is not known to torch {torch.__version__}")
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without `torch.`."""
    return str(dtype).removeprefix("torch.")


def on_cpu(tensor: Tensor) -> Tensor:
    """Return plain contiguous values in CPU memory; what is so already is not copied.

    This is the rule for tensors on the wire and in files: values travel, not the device (they arrive on the CPU), not
    pinning, not the gradient graph.
    """
    plain = tensor.detach() if tensor.requires_grad else tensor
    if type(plain) is not Tensor:
        plain = plain.as_subclass(Tensor)
    if plain.device.type != "cpu":
        if plain.device.type == "meta":
            raise WireError("a tensor on the meta device has no values to send or save")
        plain = plain.cpu()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain if plain.is_contiguous() else dense.contiguous(plain)


def memory_of(tensor: Tensor) -> Array:
    """Return the memory of a tensor as an array, without a copy where `on_cpu` needs none."""
    if tensor.dtype in _NUMPY_DTYPES:
        try:
            array = tensor.numpy()
        except (RuntimeError, TypeError):
            array = on_cpu(tensor).numpy()  # on another device, part of a graph, or a lazy conjugate or negative
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return as_bytes(on_cpu(tensor)).numpy()


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor as uint8, one dimension."""
    # A tensor of one element counts as contiguous whatever its strides are; viewing it as bytes needs stride 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def spec_of(tensor: Tensor, memory: list[Array]) -> TensorSpec:
    """Append the memory of a tensor to `memory` and say how to read it."""
    shape = tuple(tensor.shape)
    if not tensor.numel():
        return TensorSpec(dtype_name(tensor.dtype), shape, -1)
    memory.append(memory_of(tensor))
    return TensorSpec(dtype_name(tensor.dtype), shape, len(memory) - 1)


def tensor_over(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Make a tensor [shape] over memory, without a copy, whether that memory may be written or not.

    Raises:
        WireError: the memory has another size than dtype and shape say.
    """
    raw = memoryview(buffer)
    if raw.format != "B" or raw.ndim != 1:
        raw = raw.cast("B")
    expected = math.prod(shape) * dtype.itemsize
    if raw.nbytes != expected or min(shape, default=0) < 0:
        raise WireError(f"a tensor {dtype} of shape {list(shape)} needs {expected} bytes; its buffer has {raw.nbytes}")
    if not expected:
        return torch.empty(shape, dtype=dtype)
    source = _unguarded(raw) if raw.readonly else raw
    if dtype in COMPUTABLE:
        made = torch.frombuffer(source, dtype=dtype)
    else:
        made = torch.frombuffer(source, dtype=torch.uint8).view(dtype)
    if made.data_ptr() % dtype.itemsize:
        # Compiled loops of torch assume aligned memory, and end the process where it is not.
        made = torch.frombuffer(source, dtype=torch.uint8).clone().view(dtype)
    return made.view(shape)


def _unguarded(raw: memoryview) -> Any:
    # torch.frombuffer warns about read-only memory and cannot be told not to, except through warning filters, which
    # belong to the whole process. The same bytes under a ctypes array carry no such flag.
    address = np.frombuffer(raw, np.uint8).__array_interface__["data"][0]
    window = (ctypes.c_char * raw.nbytes).from_address(address)
    window.keeps_alive = raw  # type: ignore[attr-defined]
    return window


def tensor_from(spec: Any, buffers: Any) -> tuple[Tensor, bool]:
    """Return the tensor that a spec describes, and whether its memory is read-only."""
    name, shape, position = spec
    dtype = dtype_named(name)
    if position == -1:
        if math.prod(shape):
            raise WireError(f"a tensor of shape {list(shape)} is said to have no bytes")
        return torch.empty(tuple(shape), dtype=dtype), False
    raw = memoryview(buffers[position])
    return tensor_over(raw, dtype, tuple(shape)), raw.readonly
