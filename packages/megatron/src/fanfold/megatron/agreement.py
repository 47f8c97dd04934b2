"""What ranks tell each other around a step, so that all of them come to the same decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from fanfold.megatron.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Sequence


def share_numbers(numbers: Sequence[float], device: torch.device) -> torch.Tensor:
    """Collect the same few numbers from every rank.

    Returns:
        [W, n] float64 on the CPU.
    """
    world_size = torch.distributed.get_world_size()
    mine = torch.tensor(numbers, dtype=torch.float64).to(device)
    everyone = [torch.empty_like(mine) for _ in range(world_size)]
    torch.distributed.all_gather(everyone, mine)
    return torch.stack(everyone).cpu()


def raise_together(flags: torch.Tensor, error: BatchError | None) -> None:
    """Raise on every rank what one rank found wrong with its rows: a rank that went on alone would wait for ever.

    Args:
        flags: [W], not 0 for the ranks that found something.
        error: What this rank found.

    Raises:
        BatchError: The first rank's.
    """
    if not bool(flags.any()):
        return
    texts: list[str | None] = [None] * len(flags)
    torch.distributed.all_gather_object(texts, error.message if error else None)
    rank, text = next((rank, text) for rank, text in enumerate(texts) if text is not None)
    raise BatchError(text, rank) from error
