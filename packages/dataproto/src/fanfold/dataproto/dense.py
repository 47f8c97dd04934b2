"""Row operations on plain (strided) tensors of every dtype.

Letters: `B` rows.
"""

import math

import torch
from torch import Tensor

# Every operator here has worked for these in each torch since 2.6. For all other dtypes (unsigned wider than 8 bits,
# float8, float4, complex32, bit types) rows are moved as integers of the same width, which no torch version refuses.
COMPUTABLE = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    }
)
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def as_movable(tensor: Tensor) -> Tensor:
    """Return the same memory as a dtype that every row operator takes: [B, ...] -> [B, ...]."""
    if tensor.dtype in COMPUTABLE:
        return tensor
    return tensor.view(_SAME_WIDTH[tensor.dtype.itemsize])


def clone(tensor: Tensor) -> Tensor:
    """Copy the values into memory of their own."""
    return as_movable(tensor).clone().view(tensor.dtype)


def contiguous(tensor: Tensor) -> Tensor:
    """Return the values in one piece of memory, without a copy where they are so already."""
    return as_movable(tensor).contiguous().view(tensor.dtype)


def to_device(tensor: Tensor, device: torch.device, *, non_blocking: bool = False) -> Tensor:
    """Move to a device; the tensor itself where it is there already."""
    if tensor.device == device:
        return tensor
    return as_movable(tensor).to(device, non_blocking=non_blocking).view(tensor.dtype)


def take(tensor: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """Copy the rows `index` [N], on the same device, of `tensor` [B, ...] to a new tensor [N, ...], or into `out`."""
    if out is not None:
        torch.index_select(as_movable(tensor), 0, index, out=as_movable(out))
        return out
    return torch.index_select(as_movable(tensor), 0, index).view(tensor.dtype)


def cat(tensors: list[Tensor], out: Tensor | None = None) -> Tensor:
    """Put tensors of one dtype, [B_i, ...] each, below each other."""
    movable = [as_movable(tensor) for tensor in tensors]
    if out is not None:
        torch.cat(movable, out=as_movable(out))
        return out
    return torch.cat(movable).view(tensors[0].dtype)


def repeat(tensor: Tensor, times: int, *, interleave: bool, out: Tensor | None = None) -> Tensor:
    """Repeat rows as a,a,b,b (`interleave`) or a,b,a,b: [B, ...] -> [B * times, ...]."""
    rows, rest = tensor.shape[0], tuple(tensor.shape[1:])
    source = as_movable(tensor).unsqueeze(1 if interleave else 0)
    grid = (rows, times, *rest) if interleave else (times, rows, *rest)
    target = tensor.new_empty((rows * times, *rest)) if out is None else out
    if target.numel():
        as_movable(target).view(grid).copy_(source.expand(grid))
    return target


def equal(one: Tensor, other: Tensor, rtol: float, atol: float) -> bool:
    """Say whether dtype, shape and every value agree; NaN equals NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if same_memory(one, other):
        return True
    other = to_device(other, one.device)
    if one.dtype in COMPUTABLE and (one.is_floating_point() or one.is_complex()):
        return _close(one, other, rtol, atol)
    if one.dtype.is_floating_point and one.dtype.itemsize == 1 and "float8" in str(one.dtype):
        return _close(one.float(), other.float(), rtol, atol)
    return torch.equal(as_movable(one), as_movable(other))


def _close(one: Tensor, other: Tensor, rtol: float, atol: float) -> bool:
    if not rtol and not atol and torch.equal(one, other):
        return True
    return torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True)


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Say whether both are the same view of the same memory: the cheap test before values are compared."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.device == other.device
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
        and one.device.type != "meta"
    )


def nbytes(tensor: Tensor) -> int:
    """Bytes of the values that this tensor shows (a view counts only what it shows)."""
    return math.prod(tensor.shape) * tensor.dtype.itemsize
