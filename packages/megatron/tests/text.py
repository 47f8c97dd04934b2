"""Batches of real text for tests: a vocabulary of 256 is exactly bytes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import torch
from fanfold.dataproto import DataProto, position_ids_from_mask

TEXT = Path(textwrap.__file__).read_bytes()


def text_rows(rows: int, tokens: int, *, first: int = 0) -> torch.Tensor:
    """Return [rows, tokens] int64 of consecutive bytes."""
    start = first * tokens
    return torch.tensor(list(TEXT[start : start + rows * tokens])).view(rows, tokens)


def text_batch(rows: int, tokens: int, *, padded: bool = False, first: int = 0) -> DataProto:
    """Return rows of text, every third padded at the left and every third at the right where asked for."""
    mask = torch.ones(rows, tokens, dtype=torch.int64)
    if padded:
        for row in range(rows):
            cut = 3 + (row * 7) % (tokens // 2)
            if row % 3 == 1:
                mask[row, :cut] = 0
            elif row % 3 == 2:
                mask[row, -cut:] = 0
    ids = text_rows(rows, tokens, first=first) * mask
    return DataProto.from_dict(
        tensors={"input_ids": ids, "attention_mask": mask, "position_ids": position_ids_from_mask(mask)}
    )
