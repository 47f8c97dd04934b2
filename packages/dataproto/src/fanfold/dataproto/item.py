"""One row of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensordict import TensorDictBase


@dataclass
class DataProtoItem:
    """One row: tensors without the row dimension, one object for each non-tensor column, a copy of `meta_info`."""

    batch: TensorDictBase | None = None
    non_tensor_batch: Mapping[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)
