"""Rows of torch's jagged tensors, which torch itself neither cuts nor puts together.

A jagged tensor (`torch.nested`, `layout=torch.jagged`) of shape [B, a, ragged, b] keeps its values as [a, T, b]: row i
is the tokens from `offsets[i]` up to `offsets[i + 1]`. Letters: B rows, T tokens of all rows.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.dispatch.errors import BatchTypeError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Jagged(NamedTuple):
    """What a jagged tensor is made of.

    Attributes:
        values: [..., T, ...] the tokens of all rows, one row after the other.
        offsets: [B + 1] where each row begins, and where the last one ends.
        axis: the dimension of `values` that holds the tokens.
    """

    values: Any
    offsets: Any
    axis: int

    def tensor(self) -> Any:
        """Put together again."""
        build = _torch().nested.nested_tensor_from_jagged
        return build(self.values, self.offsets, jagged_dim=self.axis + 1)


def check_jagged(tensor: Any) -> None:
    """Refuse the other layout of nested tensors, whose rows cannot be cut.

    Raises:
        BatchTypeError: it is not jagged.
    """
    if tensor.layout != _torch().jagged:
        raise BatchTypeError(
            f"got a nested tensor with layout={tensor.layout}, whose rows torch can neither cut nor put together; make "
            "it with layout=torch.jagged, or send it whole with Replicate(x)"
        )


def rows_of_jagged(tensor: Any, start: int, stop: int) -> Any:
    """Rows `start` to `stop`, over the same memory."""
    values, offsets, axis = _taken_apart(tensor)
    first, last = int(offsets[start]), int(offsets[stop])
    return Jagged(values.narrow(axis, first, last - first), offsets[start : stop + 1] - first, axis).tensor()


def take_of_jagged(tensor: Any, rows: Sequence[int]) -> Any:
    """The rows at the given indices, in that order."""
    values, offsets, axis = _taken_apart(tensor)
    index = _torch().tensor(list(rows), dtype=_torch().long, device=offsets.device)
    return _gathered(values, offsets[:-1][index], offsets.diff()[index], axis).tensor()


def concat_of_jagged(tensors: Sequence[Any]) -> Any:
    """All rows in order."""
    torch, apart = _torch(), [_without_margins(_taken_apart(tensor)) for tensor in tensors]
    lengths = torch.cat([offsets.diff() for _, offsets, _ in apart])
    axis = apart[0].axis
    return Jagged(torch.cat([values for values, _, _ in apart], axis), _offsets(lengths), axis).tensor()


def _taken_apart(tensor: Any) -> Jagged:
    check_jagged(tensor)
    axis = next(dim for dim, size in enumerate(tensor.shape) if dim and not isinstance(size, int)) - 1
    offsets, lengths = tensor.offsets(), tensor.lengths()
    if lengths is None:
        return Jagged(tensor.values(), offsets, axis)
    return _gathered(tensor.values(), offsets[:-1], lengths, axis)  # rows with gaps between them, of a narrowed tensor


def _without_margins(jagged: Jagged) -> Jagged:
    """The same rows without values before the first or after the last, which a tensor made by hand may have."""
    values, offsets, axis = jagged
    first, last = int(offsets[0]), int(offsets[-1])
    return Jagged(values.narrow(axis, first, last - first), offsets - first, axis)


def _gathered(values: Any, starts: Any, lengths: Any, axis: int) -> Jagged:
    """Rows given by their first token and their length, copied next to each other."""
    torch, offsets = _torch(), _offsets(lengths)
    tokens = torch.arange(int(offsets[-1]), device=offsets.device)
    tokens = tokens + torch.repeat_interleave(starts - offsets[:-1], lengths)
    return Jagged(values.index_select(axis, tokens), offsets, axis)


def _offsets(lengths: Any) -> Any:
    return _torch().nn.functional.pad(lengths.cumsum(0), (1, 0))


def _torch() -> Any:
    return sys.modules["torch"]  # a tensor is here, so it has been imported
