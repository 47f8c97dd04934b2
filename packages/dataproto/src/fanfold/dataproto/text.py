"""Short texts for messages."""

import numpy as np
import torch

_LIMIT = 80


def short(value: object) -> str:
    """Return one line of at most 80 characters that shows a value."""
    if isinstance(value, torch.Tensor) and (value.is_nested or value.numel() > 8):  # noqa: PLR2004 (what fits a line)
        return f"{'jagged ' * value.is_nested}tensor {value.dtype} {list(value.shape)}"
    if isinstance(value, np.ndarray) and value.size > 8:  # noqa: PLR2004 (what fits a line)
        return f"array {value.dtype} {list(value.shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LIMIT else text[: _LIMIT - 3] + "..."
