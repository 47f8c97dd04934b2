"""How the next token is drawn from its logits: plain arithmetic. B rows, N new tokens, V known tokens."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from fanfold.megatron.errors import ModelConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        max_new_tokens: Most tokens that are added to a row.
        temperature: What logits are divided by; 0 takes the most probable token.
        top_p: Only the most probable tokens are drawn whose probabilities add up to this (Holtzman et al. 2019,
            arXiv 1904.09751).
        stop_tokens: A row ends with the first of these, which is part of it.
        seed: Seed of the draws: with it, each row has random numbers of its own, whatever rank continues it.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_tokens: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ModelConfigError(f"max_new_tokens={self.max_new_tokens} must be 1 or more")
        if not self.temperature >= 0:
            raise ModelConfigError(f"temperature={self.temperature} must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise ModelConfigError(f"top_p={self.top_p} must be above 0 and at most 1")

    def noise(self, rows: Iterable[int]) -> torch.Tensor:
        """Return the random numbers of rows, which depend on the seed and the row's own number alone.

        Args:
            rows: What numbers the rows: their places in the global batch, or seeds of the caller's.

        Returns:
            [B, N] float64, uniform in [0, 1).
        """
        drawn = [_uniform(f"{self.seed}/{row}", self.max_new_tokens) for row in rows]
        return torch.stack(drawn) if drawn else torch.zeros(0, self.max_new_tokens, dtype=torch.float64)

    def draw(self, logits: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw one token for each row.

        Args:
            logits: [B, V] on the CPU.
            noise: [B] float64 in [0, 1), what decides; not read at temperature 0.

        Returns:
            [B] tokens, and [B] float32 log-probability of each among all tokens, at this temperature (1 for 0).
        """
        log_probs = (logits.double() / (self.temperature or 1.0)).log_softmax(-1)
        tokens = log_probs.argmax(-1) if self.temperature == 0 else _inverse(self._kept(log_probs.exp()), noise)
        return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1).float()

    def _kept(self, probabilities: torch.Tensor) -> torch.Tensor:
        if self.top_p == 1:
            return probabilities
        ordered, places = probabilities.sort(dim=-1, descending=True, stable=True)
        # A token stays while those before it do not yet add up to top_p: the first one always does.
        ordered = torch.where(ordered.cumsum(-1) - ordered < self.top_p, ordered, 0.0)
        return torch.zeros_like(probabilities).scatter(-1, places, ordered)


def _uniform(seed: str, count: int) -> torch.Tensor:
    digest = hashlib.sha256(seed.encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.rand(count, generator=generator, dtype=torch.float64)


def _inverse(weights: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    # By the inverse of the cumulative distribution: a difference in the last bits of the logits, as between layouts,
    # almost never changes the token, which it would with draws whose number depends on the batch.
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    places = torch.searchsorted(cumulative, noise[:, None] * total, right=True)
    last = torch.searchsorted(cumulative, total)  # where rounding went up to the very end
    return torch.minimum(places, last).squeeze(1)
