"""Row operations on jagged tensors, with any ragged dimension, through public torch functions only.

Letters: `B` rows, `T` all tokens of all rows. A jagged tensor of shape [B, a, ragged, b] keeps its values as [a, T, b],
where row `i` owns the tokens `offsets[i]` to `offsets[i + 1]`; `offsets` has B + 1 entries.

Columns that share one offsets tensor can be added and multiplied with each other; torch knows them by the identity of
that tensor. A `Shared` memo, one for each operation, keeps it so: equal offsets go in, one new tensor comes out.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fanfold.dataproto import dense
from fanfold.dataproto.errors import WireError

R = TypeVar("R")


class Parts(NamedTuple):
    """What a jagged tensor is made of: values [..., T, ...], offsets [B + 1], the ragged dimension (from 1)."""

    values: Tensor
    offsets: Tensor
    ragged_dim: int


class Shared:
    """Offsets made during one operation, by the offsets they were made from."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[object, object]] = {}

    def once(self, key: Hashable, keep: object, make: Callable[[], R]) -> R:
        """Return what was made for `key` before, or make it; `keep` stays alive so that its id is not reused."""
        if key not in self._made:
            self._made[key] = (keep, make())
        return cast("R", self._made[key][1])


def is_jagged(tensor: object) -> bool:
    """Say whether this is a nested tensor of the jagged layout."""
    return isinstance(tensor, Tensor) and tensor.is_nested and tensor.layout == torch.jagged


def ragged_dim(tensor: Tensor) -> int:
    """Return the ragged dimension, counted from the rows (which are dimension 0)."""
    return next(dim for dim, size in enumerate(_sizes(tensor)) if dim and not isinstance(size, int))


def _sizes(tensor: Tensor) -> tuple[object, ...]:
    # A ragged size is symbolic, which torch's types do not say.
    return tuple(tensor.shape)


def offsets_and_lengths(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the offsets [B + 1] and, where rows have gaps between them, the lengths [B]."""
    nested: Any = tensor
    return nested.offsets(), nested.lengths()


def parts(tensor: Tensor, shared: Shared) -> Parts:
    """Take a jagged tensor apart; gaps between rows (narrowed tensors have them) are closed by a copy."""
    dim, (offsets, lengths) = ragged_dim(tensor), offsets_and_lengths(tensor)
    if lengths is None:
        return _cut_to_offsets(tensor.values(), offsets, dim, shared)
    return _close_gaps(tensor.values(), offsets, lengths, dim, shared)


def _cut_to_offsets(values: Tensor, offsets: Tensor, dim: int, shared: Shared) -> Parts:
    # Offsets usually begin at 0 and end at T; a tensor built by hand may show only a part of its values.
    first, last = shared.once(("ends", id(offsets)), offsets, lambda: (int(offsets[0]), int(offsets[-1])))
    if first == 0 and last == values.shape[dim - 1]:
        return Parts(values, offsets, dim)
    moved = shared.once(("moved", id(offsets)), offsets, lambda: offsets - first) if first else offsets
    return Parts(values.narrow(dim - 1, first, last - first), moved, dim)


def _close_gaps(values: Tensor, offsets: Tensor, lengths: Tensor, dim: int, shared: Shared) -> Parts:
    def closed() -> tuple[Tensor, Tensor]:
        return _gather_index(offsets[:-1], lengths)

    made, index = shared.once(("closed", id(offsets), id(lengths)), (offsets, lengths), closed)
    return Parts(_take_tokens(values, index, dim), made, dim)


def build(made: Parts) -> Tensor:
    """Put a jagged tensor together again."""
    values, offsets, dim = made
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dim)


def checked(made: Parts) -> Tensor:
    """Put a jagged tensor together of parts that came from outside.

    Raises:
        WireError: offsets that do not lie inside the values, from which torch would read foreign memory.
    """
    values, offsets, dim = made
    fits = type(dim) is int and 1 <= dim <= values.dim() and offsets.dim() == 1 and len(offsets)
    if not fits or offsets.dtype not in {torch.int64, torch.int32}:
        raise WireError(
            f"a jagged column has the ragged dimension {dim} and offsets {offsets.dtype} {list(offsets.shape)}"
        )
    bounds = (int(offsets[0]), int(offsets[-1]))
    if bounds != (0, values.shape[dim - 1]) or bool((offsets.diff() < 0).any()):
        raise WireError(
            f"a jagged column has offsets from {bounds[0]} to {bounds[1]} over {values.shape[dim - 1]} values"
        )
    return build(made)


def slice_rows(tensor: Tensor, start: int, stop: int, shared: Shared) -> Tensor:
    """Rows `start` to `stop` as a view of the same values."""
    values, offsets, dim = parts(tensor, shared)

    def cut() -> tuple[Tensor, int, int]:
        first, last = int(offsets[start]), int(offsets[stop])
        return offsets[start : stop + 1] - first, first, last

    made, first, last = shared.once(("slice", id(offsets), start, stop), offsets, cut)
    return build(Parts(values.narrow(dim - 1, first, last - first), made, dim))


def take(tensor: Tensor, index: Tensor, shared: Shared) -> Tensor:
    """Copy the rows `index` [N]."""
    values, offsets, dim = parts(tensor, shared)

    def gather() -> tuple[Tensor, Tensor]:
        rows = index.to(offsets.device)
        return _gather_index(offsets[:-1][rows], offsets.diff()[rows])

    made, tokens = shared.once(("take", id(offsets), id(index)), (offsets, index), gather)
    return build(Parts(_take_tokens(values, tokens, dim), made, dim))


def _gather_index(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets [N + 1] and token numbers [T'] that put N rows, given by start and length, next to each other."""
    offsets = torch.zeros(len(starts) + 1, dtype=starts.dtype, device=starts.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    total = int(offsets[-1])
    tokens = torch.arange(total, device=starts.device)
    return offsets, tokens + torch.repeat_interleave(starts - offsets[:-1], lengths, output_size=total)


def _take_tokens(values: Tensor, tokens: Tensor, dim: int) -> Tensor:
    return torch.index_select(dense.as_movable(values), dim - 1, tokens).view(values.dtype)


def cat(tensors: list[Tensor], shared: Shared) -> Tensor:
    """Put jagged tensors of one ragged dimension below each other."""
    taken = [parts(tensor, shared) for tensor in tensors]
    dim, all_offsets = taken[0].ragged_dim, [part.offsets for part in taken]
    key = ("cat", *(id(offsets) for offsets in all_offsets))
    made = shared.once(key, all_offsets, lambda: _cat_offsets(all_offsets))
    movable = [dense.as_movable(part.values) for part in taken]
    return build(Parts(torch.cat(movable, dim=dim - 1).view(tensors[0].dtype), made, dim))


def _cat_offsets(all_offsets: list[Tensor]) -> Tensor:
    lengths = torch.cat([offsets.diff().to(all_offsets[0].device) for offsets in all_offsets])
    made = torch.zeros(len(lengths) + 1, dtype=lengths.dtype, device=lengths.device)
    torch.cumsum(lengths, 0, out=made[1:])
    return made


def with_values(tensor: Tensor, change: Callable[[Tensor], Tensor], shared: Shared) -> Tensor:
    """Apply `change` (which keeps the shape and may move the device) to the values; offsets follow the device."""
    values, offsets, dim = parts(tensor, shared)
    changed = change(values)
    if changed.device == offsets.device:
        return build(Parts(changed, offsets, dim))
    moved = shared.once(("to", id(offsets), changed.device), offsets, lambda: offsets.to(changed.device))
    return build(Parts(changed, moved, dim))


def row_shape(tensor: Tensor) -> tuple[int | None, ...]:
    """Shape of a row, with None where it is ragged."""
    return tuple(size if isinstance(size, int) else None for size in _sizes(tensor)[1:])
