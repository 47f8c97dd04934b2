"""Jagged tensors made of rows. Letters: `B` rows."""

from collections.abc import Sequence

from tensordict import TensorDictBase
from torch import Tensor

from fanfold.dataproto import jagged, stack
from fanfold.dataproto.errors import ColumnError, ColumnTypeError, MergeError
from fanfold.dataproto.jagged import Parts, Shared
from fanfold.dataproto.tensordicts.values import check

_POSITION_DIMS = 3  # rows, channels, tokens


def nested_tensor_from_tensor_list(tensors: Sequence[Tensor], ragged_idx: int | None = None) -> Tensor:
    """Make a jagged tensor of B rows with equal shapes but for one dimension.

    Args:
        tensors: the rows
        ragged_idx: the ragged dimension of the result, where 0 are the rows; None is the last one

    Raises:
        MergeError: no rows.
        ColumnError: rows that differ elsewhere, or no such dimension.

    >>> made = nested_tensor_from_tensor_list([torch.zeros(2, 3), torch.zeros(2, 5)])
    >>> [list(row.shape) for row in made.unbind()]
    [[2, 3], [2, 5]]
    """
    rows = list(tensors)
    if not rows:
        raise MergeError("nested_tensor_from_tensor_list got no rows; expected at least one")
    dims = rows[0].dim()
    ragged = dims if ragged_idx is None else ragged_idx
    if not 1 <= ragged <= dims:
        raise ColumnError(f"ragged_idx is {ragged_idx}; expected 1 to {dims}, because a row has {dims} dimensions")
    for position, row in enumerate(rows):
        if row.dtype != rows[0].dtype or _without(row, ragged) != _without(rows[0], ragged):
            raise ColumnError(
                f"row {position} is {row.dtype} {list(row.shape)}, row 0 {rows[0].dtype} {list(rows[0].shape)}; "
                f"expected the same but for dimension {ragged - 1}"
            )
    return stack.jagged_of(rows, ragged - 1)


def _without(row: Tensor, ragged: int) -> list[int]:
    shape = list(row.shape)
    return shape[: ragged - 1] + shape[ragged:]


def concat_nested_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Put jagged tensors below each other; they keep their ragged dimension.

    Raises:
        MergeError: no tensors, or tensors that do not fit together.
        ColumnTypeError: a tensor that is not jagged.

    >>> one = nested_tensor_from_tensor_list([torch.arange(2), torch.arange(3)])
    >>> [row.tolist() for row in concat_nested_tensors([one, one]).unbind()]
    [[0, 1], [0, 1, 2], [0, 1], [0, 1, 2]]
    """
    listed = list(tensors)
    if not listed:
        raise MergeError("concat_nested_tensors got no tensors; expected at least one")
    for position, tensor in enumerate(listed):
        if not jagged.is_jagged(tensor):
            raise ColumnTypeError(
                f"entry {position} is no jagged tensor; expected torch.nested with layout=torch.jagged"
            )
    first = listed[0]
    for position, tensor in enumerate(listed):
        if tensor.dtype != first.dtype or jagged.row_shape(tensor) != jagged.row_shape(first):
            raise MergeError(
                f"entry {position} is {tensor.dtype} with rows {jagged.row_shape(tensor)}, entry 0 {first.dtype} with "
                f"rows {jagged.row_shape(first)}; expected the same"
            )
    return jagged.cat(listed, Shared())


def maybe_fix_3d_position_ids(data: TensorDictBase, key: str = "position_ids") -> None:
    """Restore jagged position ids [B, channels, ragged], in place, where the ragged dimension was lost track of.

    Some ways to copy a TensorDict leave [B, ragged, ...] over values [channels, tokens of all rows], which cannot be
    read. Every other column stays as it is.

    >>> ids = nested_tensor_from_tensor_list([torch.zeros(2, 3), torch.zeros(2, 5)])
    >>> plain = TensorDict({"position_ids": ids}, batch_size=[2])
    >>> maybe_fix_3d_position_ids(plain)
    >>> [list(row.shape) for row in plain["position_ids"].unbind()]
    [[2, 3], [2, 5]]
    """
    check("maybe_fix_3d_position_ids", data)
    found = dict(data.items()).get(key)
    if isinstance(found, Tensor) and jagged.is_jagged(found) and found.dim() == _POSITION_DIMS:
        fixed = _ragged_last(found)
        if fixed is not found:
            data.set(key, fixed)


def _ragged_last(position_ids: Tensor) -> Tensor:
    (offsets, _), values = jagged.offsets_and_lengths(position_ids), position_ids.values()
    if jagged.ragged_dim(position_ids) == 2 or int(offsets[-1]) != values.shape[-1]:  # noqa: PLR2004 (the last dimension)
        return position_ids
    if int(offsets[-1]) == values.shape[0]:
        return position_ids  # both readings are possible, so the stated one stands
    return jagged.build(Parts(values, offsets, 2))
