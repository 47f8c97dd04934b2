"""How the next token is drawn from its logits: plain arithmetic. B rows, V known tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from fanfold.megatron.errors import ModelConfigError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        max_new_tokens: Most tokens that are added to a row.
        temperature: What logits are divided by; 0 takes the most probable token.
        top_p: Only the most probable tokens are drawn whose probabilities add up to this (Holtzman et al. 2019,
            arXiv 1904.09751).
        stop_tokens: A row ends with the first of these, which is part of it.
        seed: Seed of the draws.
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

    def draw(self, logits: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw one token for each row.

        Args:
            logits: [B, V] on the CPU.
            generator: Where randomness comes from.

        Returns:
            [B] tokens, and [B] float32 log-probability of each among all tokens, at this temperature (1 for 0).
        """
        log_probs = (logits.double() / (self.temperature or 1.0)).log_softmax(-1)
        if self.temperature == 0:
            tokens = log_probs.argmax(-1)
        else:
            tokens = torch.multinomial(self._kept(log_probs.exp()), 1, generator=generator).squeeze(1)
        return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1).float()

    def _kept(self, probabilities: torch.Tensor) -> torch.Tensor:
        ordered, places = probabilities.sort(dim=-1, descending=True, stable=True)
        # A token stays while those before it do not yet add up to top_p: the first one always does.
        ordered = torch.where(ordered.cumsum(-1) - ordered < self.top_p, ordered, 0.0)
        return torch.zeros_like(probabilities).scatter(-1, places, ordered)
