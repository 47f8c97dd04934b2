"""Prompts and their continuations as rows that can be scored and trained on: pure. B rows, T prompt tokens, N new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from fanfold.dataproto import position_ids_from_mask
from fanfold.megatron.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Continuation:
    """What was added to rows.

    Attributes:
        tokens: [B, N] int64, 0 behind the end.
        mask: [B, N] int64, 1 where there is a token.
        log_probs: [B, N] float32, of each token when it was drawn.
    """

    tokens: torch.Tensor
    mask: torch.Tensor
    log_probs: torch.Tensor


def rollout_columns(ids: torch.Tensor, mask: torch.Tensor, made: Continuation) -> dict[str, torch.Tensor]:
    """Put each continuation directly behind the last token of its prompt, wherever that was padded.

    Args:
        ids: [B, T] prompts.
        mask: [B, T] their attention mask, one block in each row.
        made: What was added.

    Returns:
        `responses`, `response_mask`, `response_log_probs` [B, N]; `input_ids`, `attention_mask`, `position_ids`, and
        `loss_mask` (1 for the new tokens), each [B, T + N] int64.
    """
    mask = mask.long().cpu()
    whole = {"input_ids": ids.long().cpu() * mask, "attention_mask": mask, "loss_mask": torch.zeros_like(mask)}
    added = {"input_ids": made.tokens, "attention_mask": made.mask, "loss_mask": made.mask}
    ends = mask.shape[1] - mask.flip(1).argmax(1)  # behind the last token
    places = ends[:, None] + torch.arange(made.tokens.shape[1])[None, :]
    columns = {
        name: torch.cat([before, torch.zeros_like(made.tokens)], dim=1).scatter(1, places, added[name])
        for name, before in whole.items()
    }
    return {
        "responses": made.tokens,
        "response_mask": made.mask,
        "response_log_probs": made.log_probs,
        **columns,
        "position_ids": position_ids_from_mask(columns["attention_mask"]),
    }


def row_seeds(columns: Mapping[str, torch.Tensor]) -> list[int] | None:
    """Return the caller's own numbers of rows, the column `seeds` [B], or None where there is none.

    Raises:
        BatchError: The column is not one whole number for each row.
    """
    if "seeds" not in columns:
        return None
    seeds, rows = columns["seeds"], columns["input_ids"].shape[0]
    if tuple(seeds.shape) != (rows,) or seeds.is_floating_point() or seeds.dtype == torch.bool:
        raise BatchError(
            f"column 'seeds' must be one whole number for each of the {rows} rows; "
            f"got {tuple(seeds.shape)} of {str(seeds.dtype).removeprefix('torch.')}"
        )
    return [int(seed) for seed in seeds.tolist()]
