"""Losses as functions of the log-probability of each target and of further columns: values that travel to the ranks.

A loss says what one target costs. How targets are weighted, summed over ranks and divided by their number is not its
business, and so it is the same in every layout. b rows of a micro-batch, s positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from fanfold.megatron.errors import ModelConfigError

Columns = Mapping[str, torch.Tensor]


@runtime_checkable
class TokenLoss(Protocol):
    """What `train_model(batch, loss=...)` takes: a picklable value with these two.

    Attributes:
        columns: Names of the batch's columns [B, T] that the loss reads, beside the tokens.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the batch's columns [B, T] that the loss reads; each is read at the position of the target."""

    def __call__(self, log_probs: torch.Tensor, columns: Columns, /) -> tuple[torch.Tensor, Columns]:
        """Return the loss of each target, and further values of each target whose means go into the metrics.

        Args:
            log_probs: [b, s] float32, with gradient.
            columns: [b, s] each, as `self.columns` names them.

        Returns:
            [b, s], and [b, s] each.
        """


@dataclass(frozen=True)
class CrossEntropy:
    """The next token's negative log-probability."""

    columns: tuple[str, ...] = ()

    def __call__(self, log_probs: torch.Tensor, _columns: Columns, /) -> tuple[torch.Tensor, Columns]:
        """Return less the log-probabilities."""
        return -log_probs, {}


@dataclass(frozen=True)
class PolicyGradient:
    """The clipped policy gradient of PPO, with a penalty for leaving a reference model.

    The objective is Schulman et al. 2017 (arXiv 1707.06347), equation 7; the penalty is the estimator that is never
    negative, exp(r) - r - 1 with r = log reference - log policy (Schulman 2020, "Approximating KL divergence", k3).

    Reads `old_log_probs`, `advantages`, and with a penalty `ref_log_probs`, each [B, T] at the position of the token.

    Attributes:
        clip_low: The ratio of new to old probability counts down to 1 - clip_low.
        clip_high: ... and up to 1 + clip_high.
        kl_coefficient: Weight of the penalty; 0 needs no reference.

    Raises:
        ModelConfigError: A negative setting, or clip_low of 1 or more.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coefficient: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1 or self.clip_high < 0 or self.kl_coefficient < 0:
            raise ModelConfigError(
                f"0 <= clip_low < 1, clip_high >= 0, kl_coefficient >= 0; got {self.clip_low}, {self.clip_high}, "
                f"{self.kl_coefficient}"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that this loss reads."""
        return ("old_log_probs", "advantages", *(("ref_log_probs",) if self.kl_coefficient else ()))

    def __call__(self, log_probs: torch.Tensor, columns: Columns, /) -> tuple[torch.Tensor, Columns]:
        """Return the loss of each target; the share of clipped targets and the estimated divergences as metrics."""
        change = log_probs - columns["old_log_probs"]
        ratio, advantages = change.exp(), columns["advantages"]
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
        seen = {
            "clipped": (clipped * advantages < ratio * advantages).float(),
            "kl_to_old": (ratio - change - 1).detach(),
        }
        if not self.kl_coefficient:
            return loss, seen
        away = columns["ref_log_probs"] - log_probs
        penalty = away.exp() - away - 1
        return loss + self.kl_coefficient * penalty, {**seen, "kl_to_reference": penalty.detach()}
