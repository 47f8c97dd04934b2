"""Losses as functions of what the model says of each target and of further columns: values that travel to the ranks.

A loss says what one target costs. How targets are weighted, summed over ranks and divided by their number is not its
business, and so it is the same in every layout. b rows of a micro-batch, s positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from fanfold.megatron.errors import ModelConfigError

Columns = Mapping[str, torch.Tensor]


@runtime_checkable
class TokenLoss(Protocol):
    """What `train_model(batch, loss=...)` takes: a picklable value with these two.

    It may also have `temperature`, what logits are divided by (1 when it has none); `reads_entropy`, whether the
    columns shall have `entropy` [b, s], in nats and with gradient (no when it has none); and `head`, the kind of model
    it is for, `language` or `value` (any when it has none).

    Attributes:
        columns: Names of the batch's columns [B, T] that the loss reads, beside the tokens.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the batch's columns [B, T] that the loss reads; each is read at the position of the target."""

    def __call__(self, outputs: torch.Tensor, columns: Columns, /) -> tuple[torch.Tensor, Columns]:
        """Return the loss of each target, and further values of each target whose means go into the metrics.

        Args:
            outputs: [b, s] float32, with gradient: the targets' log-probabilities, or the values of a value model.
            columns: [b, s] each, as `self.columns` names them.

        Returns:
            [b, s], and [b, s] each.
        """


@dataclass(frozen=True)
class CrossEntropy:
    """The next token's negative log-probability."""

    columns: tuple[str, ...] = ()
    head: Literal["language"] = "language"

    def __call__(self, log_probs: torch.Tensor, _columns: Columns, /) -> tuple[torch.Tensor, Columns]:
        """Return less the log-probabilities."""
        return -log_probs, {}


@dataclass(frozen=True)
class PolicyGradient:
    """The clipped policy gradient of PPO, with a penalty for leaving a reference model and a reward for entropy.

    The objective is Schulman et al. 2017 (arXiv 1707.06347), equation 7; the penalty is the estimator that is never
    negative, exp(r) - r - 1 with r = log reference - log policy (Schulman 2020, "Approximating KL divergence", k3).

    Reads `old_log_probs`, `advantages`, and with a penalty `ref_log_probs`, each [B, T] at the position of the token.

    Attributes:
        clip_low: The ratio of new to old probability counts down to 1 - clip_low.
        clip_high: ... and up to 1 + clip_high.
        kl_coefficient: Weight of the penalty; 0 needs no reference.
        entropy_coefficient: Weight of the entropy, which is taken off the loss.
        temperature: What logits are divided by: that of the sampling, and of the old and reference log-probabilities.
        report_entropy: Whether the entropy is among the metrics where its coefficient is 0 too; without it, a step
            needs the memory of one tensor of logits less.

    Raises:
        ModelConfigError: A negative setting, clip_low of 1 or more, or a temperature that is not above 0.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coefficient: float = 0.0
    entropy_coefficient: float = 0.0
    temperature: float = 1.0
    report_entropy: bool = True
    head: Literal["language"] = "language"

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1:
            raise ModelConfigError(f"clip_low={self.clip_low} must be at least 0 and below 1")
        for field in ("clip_high", "kl_coefficient", "entropy_coefficient"):
            if not getattr(self, field) >= 0:
                raise ModelConfigError(f"{field}={getattr(self, field)} must be 0 or more")
        if not self.temperature > 0:
            raise ModelConfigError(f"temperature={self.temperature} must be above 0")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that this loss reads."""
        return ("old_log_probs", "advantages", *(("ref_log_probs",) if self.kl_coefficient else ()))

    @property
    def reads_entropy(self) -> bool:
        """Whether the entropy is part of the loss or of the metrics."""
        return self.report_entropy or self.entropy_coefficient > 0

    def __call__(self, log_probs: torch.Tensor, columns: Columns, /) -> tuple[torch.Tensor, Columns]:
        """Return the loss of each target; the share of clipped targets, divergences and entropy as metrics."""
        change = log_probs - columns["old_log_probs"]
        ratio, advantages = change.exp(), columns["advantages"]
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
        seen = {
            "clipped": (clipped * advantages < ratio * advantages).float(),
            "kl_to_old": (ratio - change - 1).detach(),
        }
        if self.kl_coefficient:
            away = columns["ref_log_probs"] - log_probs
            penalty = away.exp() - away - 1
            loss, seen["kl_to_reference"] = loss + self.kl_coefficient * penalty, penalty.detach()
        if self.reads_entropy:
            seen["entropy"] = columns["entropy"].detach()
        if self.entropy_coefficient:
            loss = loss - self.entropy_coefficient * columns["entropy"]
        return loss, seen


@dataclass(frozen=True)
class ValueLoss:
    """Half the squared distance of a value model from the returns, with PPO's clipping around the old values if wanted.

    The larger of the clipped and the free distance counts, as in the code of Schulman et al. 2017 (see Engstrom et al.
    2020, arXiv 2005.12729, section 3).

    Reads `returns`, and with clipping `old_values`, each [B, T] at the position of the token that the value stood for.

    Attributes:
        clip: How far values may go from the old ones before going farther is of no use; None does not clip.

    Raises:
        ModelConfigError: A clip that is not above 0.
    """

    clip: float | None = None
    head: Literal["value"] = "value"

    def __post_init__(self) -> None:
        if self.clip is not None and not self.clip > 0:
            raise ModelConfigError(f"clip={self.clip} must be above 0, or None")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that this loss reads."""
        return ("returns", *(("old_values",) if self.clip is not None else ()))

    def __call__(self, values: torch.Tensor, columns: Columns, /) -> tuple[torch.Tensor, Columns]:
        """Return the loss of each target; the mean value, and the share of clipped targets, as metrics."""
        loss, seen = (values - columns["returns"]) ** 2, {"value": values.detach()}
        if self.clip is not None:
            old = columns["old_values"]
            clipped = (old + (values - old).clamp(-self.clip, self.clip) - columns["returns"]) ** 2
            seen["clipped"] = (clipped > loss).float()
            loss = torch.maximum(loss, clipped)
        return loss / 2, seen
