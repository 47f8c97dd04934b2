"""Python objects as one block of bytes: object columns and metadata, decoded when somebody touches them.

Arrays and tensors inside large enough to matter stay outside of the block, as buffers. Objects that only cloudpickle
can carry (classes of the main script, lambdas, references of a cluster runtime) are given to cloudpickle where there is
one; it is looked for only when it is needed.
"""

import importlib
import io
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from fanfold.dataproto import dense
from fanfold.dataproto.buffers import dtype_name, dtype_named, memory_of, tensor_over
from fanfold.dataproto.errors import DataProtoError, WireError

_OUTSIDE_FROM = 16 * 1024  # bytes; below this a buffer of its own costs more than a copy


class _NeedsCloudpickleError(Exception):
    """An object that the standard pickle would store by a name that other processes do not know."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return _reduce_tensor(value)
        if isinstance(value, type | FunctionType) and _is_local(value):
            raise _NeedsCloudpickleError
        if type(value).__module__.partition(".")[0] == "ray":
            raise _NeedsCloudpickleError
        return NotImplemented


def _is_local(value: type | FunctionType) -> bool:
    return value.__module__ == "__main__" or "<locals>" in value.__qualname__ or value.__qualname__ == "<lambda>"


def _reduce_tensor(tensor: Tensor) -> Any:
    if type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return NotImplemented
    if not tensor.numel():
        return _cell_tensor, (dtype_name(tensor.dtype), tuple(tensor.shape), b"")
    return _cell_tensor, (dtype_name(tensor.dtype), tuple(tensor.shape), pickle.PickleBuffer(memory_of(tensor).data))


def _cell_tensor(name: str, shape: tuple[int, ...], buffer: Any) -> Tensor:
    made = tensor_over(buffer, dtype_named(name), shape)
    return dense.clone(made) if memoryview(buffer).readonly else made


def dumps(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return the block and the buffers that stay outside of it.

    Raises:
        Exception: whatever the object itself raises while it is pickled.
    """
    outside: list[pickle.PickleBuffer] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _OUTSIDE_FROM:
            return True
        outside.append(buffer)
        return False

    stream = io.BytesIO()
    try:
        _Pickler(stream, 5, buffer_callback=keep_inside).dump(value)
    except DataProtoError:
        raise  # a batch inside this value has said what is wrong
    except Exception:  # noqa: BLE001 (an object's own __reduce__ may raise anything)
        return _cloudpickle().dumps(value, protocol=5), []
    return stream.getvalue(), outside


def _cloudpickle() -> Any:
    # Ray's copy knows Ray's references, so it goes first; without any, names of the main script are all there is.
    if "ray.cloudpickle" in sys.modules:
        return sys.modules["ray.cloudpickle"]
    try:
        return importlib.import_module("cloudpickle")
    except ModuleNotFoundError:
        return pickle


def loads(block: Any, buffers: Sequence[Any], *, writable: bool) -> Any:
    """Decode a block; with `writable`, arrays over read-only memory are copied.

    Raises:
        WireError: the block is damaged, or needs a class that this process does not have.
    """
    own = [bytearray(buffer) if writable and memoryview(buffer).readonly else buffer for buffer in buffers]
    try:
        return pickle.loads(block, buffers=own)  # noqa: S301 (only reached inside an unpickling that the user asked for)
    except Exception as error:
        raise WireError(
            f"object columns and meta_info cannot be decoded: {type(error).__name__}: {error}. Their classes must be "
            "importable here; classes of a main script travel where the sender has cloudpickle."
        ) from error


def culprit(columns: Iterable[tuple[str, Iterable[Any]]], meta: Mapping[str, Any]) -> str | None:
    """Say which column and row, or which key of `meta_info`, cannot be pickled; None when each can."""
    for name, cells in columns:
        for row, cell in enumerate(cells):
            if (text := _failure(cell)) is not None:
                return f"column {name!r}, row {row}: {text}"
    for key, value in meta.items():
        if (text := _failure(value)) is not None:
            return f"meta_info[{key!r}]: {text}"
    return None


def _failure(value: object) -> str | None:
    try:
        dumps(value)
    except Exception as error:  # noqa: BLE001 (an object's own __reduce__ may raise anything)
        return f"a {type(value).__name__} cannot be pickled ({type(error).__name__}: {error})"
    return None
