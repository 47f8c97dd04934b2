"""Position ids. Letters: `B` rows, `T` tokens."""

import torch
from torch import Tensor


def position_ids_from_mask(mask: Tensor) -> Tensor:
    """Return the position of each token among the attended ones: [B, T] of 0/1 or bool to [B, T] int64.

    Padding before the first attended token gets 0; padding after an attended token repeats its position.

    >>> position_ids_from_mask(torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0]]))
    tensor([[0, 0, 1, 2],
            [0, 1, 1, 1]])
    """
    return (mask != 0).cumsum(-1, dtype=torch.int64).sub_(1).clamp_(min=0)
