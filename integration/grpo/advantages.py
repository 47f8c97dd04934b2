"""How much better a response was than expected: plain functions of tensors. B rows, T tokens, G groups."""

from __future__ import annotations

import torch


def group_advantages(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Compare each response with the others to the same prompt (GRPO: Shao et al. 2024, arXiv 2402.03300, 4.1.2).

    Args:
        rewards: [B]
        groups: [B], which rows belong together.

    Returns:
        [B], the reward less the group's mean, over the group's standard deviation; exactly 0 where all rewards of a
        group are equal: there is nothing to learn from it.
    """
    rewards = rewards.double()
    _, places = torch.unique(groups, return_inverse=True)
    count = torch.bincount(places).double()
    mean = torch.zeros_like(count).index_add(0, places, rewards) / count
    away = rewards - mean[places]
    deviation = (torch.zeros_like(count).index_add(0, places, away**2) / count).sqrt()
    # Not by the deviation, which rounding may leave a little above 0 where all rewards are equal.
    highest = torch.full_like(count, -torch.inf).scatter_reduce(0, places, rewards, "amax")
    lowest = torch.full_like(count, torch.inf).scatter_reduce(0, places, rewards, "amin")
    differ = (highest > lowest)[places]
    return torch.where(differ, away / torch.where(differ, deviation[places], 1.0), 0.0).float()


def over_tokens(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Give each token of a response [B, T] its row's value [B]; 0 elsewhere."""
    return values[:, None] * mask.float()


def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, discount: float = 1.0, trace: float = 0.95
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compare what came with what a critic expected (GAE: Schulman et al. 2015, arXiv 1506.02438, equation 16).

    Args:
        rewards: [B], given for the last token of a response.
        values: [B, T], what the critic said before each token.
        mask: [B, T], 1 for the tokens of the response, one block in each row.
        discount: Gamma.
        trace: Lambda.

    Returns:
        Advantages and returns, each [B, T], 0 outside the response; a row without a response has none.
    """
    mask, ends = mask.bool(), torch.zeros_like(mask)
    ends[:, :-1], ends[:, -1] = mask[:, :-1] & ~mask.bool()[:, 1:], mask[:, -1]
    advantages = torch.zeros_like(values)
    later_value = later_advantage = torch.zeros_like(rewards)
    for token in reversed(range(values.shape[1])):
        here = mask[:, token]
        surprise = rewards * ends[:, token] + discount * later_value - values[:, token]
        advantages[:, token] = torch.where(here, surprise + discount * trace * later_advantage, 0.0)
        later_value = torch.where(here, values[:, token], 0.0)
        later_advantage = advantages[:, token]
    return advantages, torch.where(mask, advantages + values, 0.0)


def whitened(advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Bring the advantages [B, T] of all response tokens to mean 0 and deviation 1; 0 where they do not differ."""
    here = advantages[mask.bool()].double()
    if len(here) == 0 or here.max() == here.min():
        return torch.zeros_like(advantages)
    return torch.where(mask.bool(), (advantages - here.mean()) / here.std(correction=0), 0.0).float()


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> float:
    """Return the mean of values [B, T] over the tokens of the mask; 0 where there is none."""
    return float((values * mask).sum() / mask.sum().clamp(min=1))
