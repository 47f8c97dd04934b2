"""Jagged tensors made of rows. Letters: `B` rows."""

from collections.abc import Sequence

from torch import Tensor

from fanfold.dataproto import jagged, stack
from fanfold.dataproto.errors import ColumnError, ColumnTypeError, MergeError
from fanfold.dataproto.jagged import Parts, Shared

_POSITION_DIMS = 3  # rows, channels, tokens


def nested_tensor_from_tensor_list(tensor_list: Sequence[Tensor], ragged_idx: int | None = None) -> Tensor:
    """Make a jagged tensor of B rows with equal shapes but for one dimension.

    Args:
        tensor_list: the rows
        ragged_idx: the ragged dimension of the result, where 0 are the rows; None is the last one

    Raises:
        MergeError: no rows.
        ColumnError: rows that differ elsewhere, or no such dimension.

    >>> made = nested_tensor_from_tensor_list([torch.zeros(2, 3), torch.zeros(2, 5)])
    >>> [list(row.shape) for row in made.unbind()]
    [[2, 3], [2, 5]]
    """
    rows = list(tensor_list)
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


def maybe_fix_3d_position_ids(position_ids: Tensor) -> Tensor:
    """Return jagged position ids [B, channels, ragged]: of a tensor that lost track of which dimension is ragged.

    A jagged tensor [B, ragged, tokens] whose values are [channels, tokens of all rows] cannot be read; one that is [B,
    channels, ragged] comes back as it is, and so does everything that is not jagged.

    >>> made = nested_tensor_from_tensor_list([torch.zeros(2, 3), torch.zeros(2, 5)])
    >>> maybe_fix_3d_position_ids(made) is made
    True
    """
    if not jagged.is_jagged(position_ids) or position_ids.dim() != _POSITION_DIMS:
        return position_ids
    (offsets, _), values = jagged.offsets_and_lengths(position_ids), position_ids.values()
    if jagged.ragged_dim(position_ids) == 2 or int(offsets[-1]) != values.shape[-1]:  # noqa: PLR2004 (the last dimension)
        return position_ids
    if int(offsets[-1]) == values.shape[0]:
        return position_ids  # both readings are possible, so the stated one stands
    return jagged.build(Parts(values, offsets, 2))
