"""Log-probabilities and entropy of a vocabulary that is divided over the tensor-parallel ranks.

b rows, s positions, V known tokens, P tensor-parallel ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp


def log_probs_and_entropy(
    logits: torch.Tensor, labels: torch.Tensor, group: Any, *, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute both from logits of which each rank has its part of the vocabulary; both have gradients.

    Args:
        logits: [b, s, V/P], this rank's part.
        labels: [b, s], tokens 0 to V - 1.
        group: The tensor-parallel ranks.
        temperature: What logits are divided by.

    Returns:
        [b, s] float32 natural logarithm of each label's probability, and [b, s] float32 entropy in nats.
    """
    log_probs, entropy = _OverVocabulary.apply(logits.float() / temperature, labels, group)
    return log_probs, entropy


class _OverVocabulary(torch.autograd.Function):
    """The softmax over all ranks' parts, kept for the gradients.

    With p the probabilities and H the entropy: d log p(label) / d logit = [is label] - p, and
    d H / d logit = -p (log p + H).
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, group: Any) -> tuple[torch.Tensor, torch.Tensor]:
        shifted = logits - _over(group, logits.amax(-1), ReduceOp.MAX)[..., None]
        here = labels - group.rank() * logits.shape[-1]
        mine = (here >= 0) & (here < logits.shape[-1])
        place = here.clamp(0, logits.shape[-1] - 1)[..., None]
        of_label = shifted.gather(-1, place).squeeze(-1) * mine
        weights = shifted.exp()
        sums = torch.stack([weights.sum(-1), (weights * shifted).sum(-1), of_label])
        total, weighted, of_label = _over(group, sums, ReduceOp.SUM)
        entropy = total.log() - weighted / total
        ctx.save_for_backward(weights.div_(total[..., None]), place, mine, entropy)
        ctx.set_materialize_grads(False)
        return of_label - total.log(), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor, None, None]:
        probabilities, place, mine, entropy = ctx.saved_tensors
        of_log_prob, of_entropy = gradients
        gradient = torch.zeros_like(probabilities)
        if of_log_prob is not None:
            gradient -= probabilities * of_log_prob[..., None]
            gradient.scatter_add_(-1, place, (of_log_prob * mine)[..., None])
        if of_entropy is not None:
            both = torch.xlogy(probabilities, probabilities) + probabilities * entropy[..., None]
            gradient -= both * of_entropy[..., None]
        return gradient, None, None


def _over(group: Any, values: torch.Tensor, how: Any) -> torch.Tensor:
    torch.distributed.all_reduce(values, op=how, group=group)
    return values
