"""The learning rate as a function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fanfold.megatron.errors import ModelConfigError


@dataclass(frozen=True)
class LearningRate:
    """Up to `peak` over the warm-up steps, then down to `floor` over the decay steps, then flat.

    Attributes:
        peak: Highest learning rate.
        warmup_steps: Steps of the straight way up.
        decay: `constant` stays at the peak, `linear` and `cosine` go down.
        decay_steps: Steps of the way down, after the warm-up.
        floor: Where the way down ends.
    """

    peak: float
    warmup_steps: int = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 <= self.floor <= self.peak and math.isfinite(self.peak)):
            raise ModelConfigError(
                f"a learning rate needs 0 <= floor <= peak, finite; got floor={self.floor}, peak={self.peak}"
            )
        if self.warmup_steps < 0 or self.decay_steps < 0:
            raise ModelConfigError(
                f"steps are 0 or more; got warmup_steps={self.warmup_steps}, decay_steps={self.decay_steps}"
            )
        if self.decay not in ("constant", "linear", "cosine"):
            raise ModelConfigError(f"decay={self.decay!r} must be 'constant', 'linear' or 'cosine'")
        if (self.decay == "constant") != (self.decay_steps == 0):
            raise ModelConfigError(f"decay={self.decay!r} and decay_steps={self.decay_steps} do not go together")

    def at(self, step: int) -> float:
        """Return the learning rate of a step, the first of which is number 1."""
        if step <= self.warmup_steps:
            return self.peak * step / self.warmup_steps
        if self.decay == "constant":
            return self.peak
        way = min(1.0, (step - 1 - self.warmup_steps) / self.decay_steps)
        share = 1 - way if self.decay == "linear" else (1 + math.cos(math.pi * way)) / 2
        return self.floor + (self.peak - self.floor) * share
