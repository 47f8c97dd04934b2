"""Copying of metadata: no batch shares a dictionary, list or set inside `meta_info` with another batch."""

from typing import Any

import numpy as np
import torch

from fanfold.dataproto import dense

Meta = dict[str, Any]


def copy_meta(meta: Meta) -> Meta:
    """Copy the containers; tensors, arrays and other objects inside are shared, like the columns of a view."""
    return {key: _copy(value, arrays=False) for key, value in meta.items()}


def copy_meta_deep(meta: Meta) -> Meta:
    """Copy the containers and the tensors and arrays inside; other objects are shared."""
    return {key: _copy(value, arrays=True) for key, value in meta.items()}


def _copy(value: Any, *, arrays: bool) -> Any:  # noqa: PLR0911 (one line for each kind)
    kind = type(value)
    if kind is dict:
        return {key: _copy(item, arrays=arrays) for key, item in value.items()}
    if kind is list:
        return [_copy(item, arrays=arrays) for item in value]
    if kind is tuple:
        return tuple(_copy(item, arrays=arrays) for item in value)
    if kind is set or kind is bytearray:
        return value.copy()
    if arrays and kind is np.ndarray:
        return value.copy()
    if arrays and kind is torch.Tensor:
        return _cloned(value.detach())
    return value


def _cloned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if tensor.dtype in dense.COMPUTABLE else dense.clone(tensor)
