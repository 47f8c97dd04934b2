"""Rows of tokens as the model takes them: each begins at position 0 and is padded at the end.

B rows, T tokens a row as the caller gave them, S tokens a row as the model takes them (the longest row, rounded up to
what the layout divides). Rotary positions are relative, so a row that was padded at the left means the same when it is
moved to the front, and plain causal attention then serves left and right padding alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from fanfold.megatron.errors import BatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class RowLimits:
    """What the model and the layout ask of rows.

    Attributes:
        vocab_size: Tokens are 0 to this, less 1.
        max_sequence_length: Most tokens in a row.
        multiple: S is a multiple of this.
    """

    vocab_size: int
    max_sequence_length: int
    multiple: int = 1


@dataclass(frozen=True)
class Rows:
    """Rows moved to the front, with what is to be predicted at each position.

    Attributes:
        tokens: [B, S] int64, 0 behind the end of a row.
        labels: [B, S] int64, the token that follows.
        weights: [B, S] float32, 1 where the label counts in the loss and 0 elsewhere.
        lengths: [B] int64, tokens of each row.
        starts: [B] int64, where the first token lies in the caller's row.
        width: T.
        columns: [B, S] each, the caller's other columns at the position of the label.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor
    width: int
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def target_count(self) -> float:
        """Sum of all weights."""
        return float(self.weights.sum(dtype=torch.float64))

    def micro_batches(self, size: int, count: int) -> Iterator[Rows]:
        """Give the rows out in `count` equal parts of `size`; rows that are not there have no tokens and no weight."""
        for number in range(count):
            yield self._padded(number * size, size)

    def at_callers_positions(self, values: torch.Tensor) -> torch.Tensor:
        """Move values of labels [B, S] to where those tokens lie in the caller's rows: [B, T], 0 elsewhere."""
        ours = torch.arange(values.shape[1])
        theirs = self.starts[:, None] + ours[None, :] + 1
        known = ours[None, :] + 1 < self.lengths[:, None]
        moved = values.new_zeros(len(self), self.width)
        rows = torch.arange(len(self))[:, None].expand_as(theirs)
        moved[rows[known], theirs[known]] = values[known]
        return moved

    def _padded(self, first: int, size: int) -> Rows:
        def part(rows: torch.Tensor) -> torch.Tensor:
            here = rows[first : first + size]
            return torch.cat([here, here.new_zeros(size - here.shape[0], *here.shape[1:])])

        return Rows(
            tokens=part(self.tokens),
            labels=part(self.labels),
            weights=part(self.weights),
            lengths=part(self.lengths),
            starts=part(self.starts),
            width=self.width,
            columns={name: part(column) for name, column in self.columns.items()},
        )


def read_rows(
    columns: Mapping[str, torch.Tensor], limits: RowLimits, *, padding: int = 0, extra: tuple[str, ...] = ()
) -> Rows:
    """Check rows and move them to the front.

    Args:
        columns: `input_ids` [B, T] and `attention_mask` [B, T] (1 for real tokens, one block in each row); where given,
            `position_ids` [B, T] must count from the first real token, and `loss_mask` [B, T] is 1 for the tokens whose
            prediction counts.
        limits: What the model and the layout ask for.
        padding: How many rows at the end are there only to fill up: they have no weight.
        extra: Names of further columns [B, T] to carry along.

    Raises:
        BatchError: A column is missing or has another shape, or a row cannot be what the model takes; the row is named.
    """
    ids, mask = _column(columns, "input_ids"), _column(columns, "attention_mask").bool()
    lengths, starts = mask.sum(1), mask.long().argmax(1)
    _check_mask(mask, lengths, starts, padding)
    _check_positions(columns, mask, starts)
    _check_tokens(ids, mask, limits.vocab_size)
    _refuse(
        "has {} tokens, more than the model's max_sequence_length={}",
        lengths > limits.max_sequence_length,
        lengths,
        limits.max_sequence_length,
    )

    longest = max(1, int(lengths.max()) if len(lengths) else 1)
    place = torch.arange(-(-longest // limits.multiple) * limits.multiple)[None, :]
    real, has_label = place < lengths[:, None], place + 1 < lengths[:, None]
    tokens_at = _places(place, starts, mask.shape[1])
    labels_at = _places(place + 1, starts, mask.shape[1])
    counted = mask if "loss_mask" not in columns else _column(columns, "loss_mask").bool()
    weights = (counted.gather(1, labels_at) & has_label).float()
    weights[len(weights) - padding :] = 0.0
    return Rows(
        tokens=ids.gather(1, tokens_at) * real,
        labels=ids.gather(1, labels_at) * has_label,
        weights=weights,
        lengths=lengths,
        starts=starts,
        width=mask.shape[1],
        columns={name: _column(columns, name).gather(1, labels_at) * has_label for name in extra},
    )


_ROWS_AND_TOKENS = 2


def _column(columns: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in columns:
        raise BatchError(f"the batch has no column {name!r}; it has {', '.join(sorted(columns)) or 'none'}")
    column = columns[name]
    shape = tuple(columns["input_ids"].shape)
    if len(shape) != _ROWS_AND_TOKENS or tuple(column.shape) != shape or shape[1] == 0:
        raise BatchError(
            f"column {name!r} must be [rows, tokens] like input_ids; got {tuple(column.shape)}, input_ids is {shape}"
        )
    if name == "input_ids" and (column.is_floating_point() or column.dtype == torch.bool):
        raise BatchError(f"column 'input_ids' must be whole numbers; got {column.dtype}")
    return column.detach().cpu().long() if not column.is_floating_point() else column.detach().cpu()


def _check_mask(mask: torch.Tensor, lengths: torch.Tensor, starts: torch.Tensor, padding: int) -> None:
    place = torch.arange(mask.shape[1])[None, :]
    block = (place >= starts[:, None]) & (place < (starts + lengths)[:, None])
    _refuse(
        "has a hole in its attention_mask; padding goes to the left or the right end, not between tokens",
        (block != mask).any(1),
    )
    real_rows = torch.arange(len(mask)) < len(mask) - padding
    _refuse("has no token at all (its attention_mask is 0 everywhere); leave such rows out", (lengths == 0) & real_rows)


def _check_positions(columns: Mapping[str, torch.Tensor], mask: torch.Tensor, starts: torch.Tensor) -> None:
    if "position_ids" not in columns:
        return
    wanted = torch.arange(mask.shape[1])[None, :] - starts[:, None]
    wrong = (_column(columns, "position_ids") != wanted) & mask
    _refuse(
        "has position_ids that do not count 0, 1, 2 ... from its first token (position_ids_from_mask makes them); "
        "packed rows are not supported",
        wrong.any(1),
    )


def _check_tokens(ids: torch.Tensor, mask: torch.Tensor, vocab_size: int) -> None:
    unknown = ((ids < 0) | (ids >= vocab_size)) & mask
    first = ids.gather(1, unknown.long().argmax(1, keepdim=True)).squeeze(1)
    _refuse("has the token {}, and the model's vocabulary is 0 to {}", unknown.any(1), first, vocab_size - 1)


def _refuse(text: str, wrong: torch.Tensor, values: torch.Tensor | None = None, limit: int | None = None) -> None:
    rows = wrong.nonzero().flatten().tolist()
    if rows:
        value = int(values[rows[0]]) if values is not None else None
        others = f" (and {len(rows) - 1} more: {', '.join(map(str, rows[1:6]))})" if len(rows) > 1 else ""
        raise BatchError(f"row {rows[0]} of this rank's {len(wrong)}{others} " + text.format(value, limit))


def _places(place: torch.Tensor, starts: torch.Tensor, width: int) -> torch.Tensor:
    return (place + starts[:, None]).clamp(max=width - 1)
