"""A loss as a user writes one; here because ranks in other processes import it by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class SecondToken:
    columns: tuple[str, ...] = ()

    def __call__(
        self, log_probs: torch.Tensor, columns: Mapping[str, torch.Tensor], /
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return log_probs**2, {"largest": log_probs}


@dataclass(frozen=True)
class Noisy:
    """Draws as many random numbers as there are targets."""

    columns: tuple[str, ...] = ()

    def __call__(
        self, log_probs: torch.Tensor, columns: Mapping[str, torch.Tensor], /
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        return -log_probs * (0.5 + torch.rand_like(log_probs)), {}
