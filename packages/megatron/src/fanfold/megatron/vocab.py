"""Log-probabilities and entropy of a vocabulary that is divided over the tensor-parallel ranks; without gradients.

b rows, s positions, V known tokens, P tensor-parallel ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp


def log_probs_and_entropy(
    logits: torch.Tensor, labels: torch.Tensor, group: Any, *, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute both from logits of which each rank has its part of the vocabulary.

    Args:
        logits: [b, s, V/P], this rank's part.
        labels: [b, s], tokens 0 to V - 1.
        group: The tensor-parallel ranks.
        temperature: What logits are divided by.

    Returns:
        [b, s] float32 natural logarithm of each label's probability, and [b, s] float32 entropy in nats.
    """
    logits = logits.float() / temperature
    highest = _over(group, logits.amax(-1), ReduceOp.MAX)
    logits -= highest[..., None]
    here = labels - group.rank() * logits.shape[-1]
    mine = (here >= 0) & (here < logits.shape[-1])
    of_label = logits.gather(-1, here.clamp(0, logits.shape[-1] - 1)[..., None]).squeeze(-1) * mine
    weights = logits.exp()
    sums = torch.stack([weights.sum(-1), (weights * logits).sum(-1), of_label])
    total, weighted, of_label = _over(group, sums, ReduceOp.SUM)
    normaliser = total.log()
    return of_label - normaliser, normaliser - weighted / total


def _over(group: Any, values: torch.Tensor, how: Any) -> torch.Tensor:
    torch.distributed.all_reduce(values, op=how, group=group)
    return values
