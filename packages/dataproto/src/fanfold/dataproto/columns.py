"""One column of a batch, whatever it is made of: dense, jagged, a nested TensorDict, or a non-tensor leaf of one.

Letters: `B` rows. Each function takes a column with B rows and knows nothing of the other columns; what several jagged
columns share during one operation goes through `Shared`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from fanfold.dataproto import dense, jagged
from fanfold.dataproto.equality import deep_equal
from fanfold.dataproto.errors import ColumnError, ColumnTypeError, MergeError
from fanfold.dataproto.jagged import Shared
from fanfold.dataproto.leaves import is_shared_value, is_stack, listed, restack, rows_of_stack

# A tensor, a TensorDict, or what a TensorDict holds for values that are no tensors. The classes of the latter are made
# by a decorator that type checkers cannot see through, hence Any.
Column: TypeAlias = Any


def is_tensor(column: Column) -> bool:
    """Say whether this is a tensor, dense or jagged."""
    return isinstance(column, Tensor)


def is_tree(column: Column) -> bool:
    """Say whether this is a plain nested TensorDict, whose leaves are columns again."""
    return type(column) is TensorDict


def is_column(value: object) -> bool:
    """Say whether a TensorDict can hold this value as a column."""
    return isinstance(value, Tensor) or is_tensor_collection(value)


def rows_of(column: Column) -> int:
    """Return B."""
    return int(column.shape[0])


def check(name: str, column: object) -> None:
    """Refuse what can never be a column, naming it."""
    if not is_column(column):
        raise ColumnTypeError(
            f"column {name!r} is a {type(column).__name__}; expected a torch.Tensor or a TensorDict. "
            "Arrays and per-row Python objects belong into non_tensors / non_tensor_batch."
        )
    if not isinstance(column, Tensor):
        return
    if not column.dim():
        raise ColumnError(f"column {name!r} is a 0-d tensor; expected at least one dimension, the rows. Use meta_info.")
    if column.layout not in {torch.strided, torch.jagged} or (column.is_nested and column.layout != torch.jagged):
        raise ColumnError(
            f"column {name!r} has the layout {'nested ' * column.is_nested}{column.layout}; expected a dense tensor or "
            "layout=torch.jagged. Convert it, for example with .to_dense()."
        )
    if column.is_quantized:
        raise ColumnError(
            f"column {name!r} is a quantized tensor ({column.dtype}); expected values, use .dequantize()."
        )


def _rebuild(tree: TensorDictBase, batch_size: Sequence[int], leaves: dict[str, Column]) -> TensorDict:
    names = tree.names
    if all(name is None for name in names) or len(names) != len(batch_size):
        return TensorDict(leaves, batch_size=list(batch_size), device=tree.device)
    return TensorDict(leaves, batch_size=list(batch_size), device=tree.device, names=names)


def map_leaves(tree: TensorDictBase, rows: int, change: Callable[[Column], Column]) -> TensorDict:
    """Apply `change` to each leaf column and give the nested batch the new number of rows."""
    leaves = {name: change(leaf) for name, leaf in tree.items()}
    return _rebuild(tree, [rows, *tree.batch_size[1:]], leaves)


def slice_rows(column: Column, start: int, stop: int, shared: Shared) -> Column:
    """Rows `start` to `stop`, as a view of tensors."""
    if isinstance(column, Tensor):
        return jagged.slice_rows(column, start, stop, shared) if column.is_nested else column[start:stop]
    if is_tree(column):
        return map_leaves(column, stop - start, lambda leaf: slice_rows(leaf, start, stop, shared))
    if is_shared_value(column):
        return NonTensorData(column.data, batch_size=[stop - start, *column.batch_size[1:]])
    if is_stack(column):
        return restack(rows_of_stack(column)[start:stop], column)
    return column[start:stop]


def take(column: Column, index: Tensor, shared: Shared, out: Column | None = None) -> Column:
    """Copy the rows `index` [N], int64."""
    if isinstance(column, Tensor):
        if column.is_nested:
            return jagged.take(column, index, shared)
        device = column.device
        return dense.take(column, shared.once(("on", id(index), device), index, lambda: index.to(device)), out)
    if is_tree(column):
        return map_leaves(column, len(index), lambda leaf: take(leaf, index, shared))
    if is_shared_value(column):
        return NonTensorData(column.data, batch_size=[len(index), *column.batch_size[1:]])
    if is_stack(column):
        rows = rows_of_stack(column)
        return restack([rows[number] for number in index.tolist()], column)
    return column[index]


def cat(name: str, parts: list[Column], shared: Shared, out: Column | None = None) -> Column:
    """Put the parts of one column below each other.

    Raises:
        MergeError: the parts do not agree in kind, dtype or row shape; names the column and the part.
    """
    first = parts[0]
    if all(is_shared_value(part) or is_stack(part) for part in parts):
        return _cat_objects(parts)
    _check_alike(name, parts)
    if isinstance(first, Tensor):
        return jagged.cat(parts, shared) if first.is_nested else dense.cat(parts, out)
    if is_tree(first):
        return _cat_trees(name, parts, shared)
    return torch.cat(parts)


def _cat_objects(parts: list[Column]) -> Column:
    filled = [part for part in parts if rows_of(part)]
    if not filled:
        return parts[0]
    rows = sum(rows_of(part) for part in filled)
    shared_values = [part.data for part in filled if is_shared_value(part)]
    if len(shared_values) == len(filled) and all(deep_equal(shared_values[0], value) for value in shared_values[1:]):
        return NonTensorData(filled[0].data, batch_size=[rows, *filled[0].batch_size[1:]])
    return NonTensorStack(*[row for part in filled for row in part.unbind(0)])


def _cat_trees(name: str, parts: list[Column], shared: Shared) -> TensorDict:
    rows = sum(rows_of(part) for part in parts)
    leaves = {leaf: cat(f"{name}.{leaf}", [part.get(leaf) for part in parts], shared) for leaf, _ in parts[0].items()}
    return _rebuild(parts[0], [rows, *parts[0].batch_size[1:]], leaves)


def kind(column: Column) -> str:
    """Name of what the column is made of, for texts and comparisons."""
    if isinstance(column, Tensor):
        return "jagged tensor" if column.is_nested else "tensor"
    if is_shared_value(column) or is_stack(column):
        return "objects"
    return "TensorDict" if is_tree(column) else type(column).__name__


def shape_text(column: Column) -> str:
    """Shape of one row, `*` where it is ragged."""
    if isinstance(column, Tensor):
        return "[" + ", ".join("*" if size is None else str(size) for size in jagged.row_shape(column)) + "]"
    return str(list(column.batch_size[1:]))


def _signature(column: Column) -> tuple[object, ...]:
    if isinstance(column, Tensor):
        return kind(column), column.dtype, jagged.row_shape(column)
    if is_tree(column):
        return kind(column), tuple(column.batch_size[1:]), frozenset(column.keys())
    return (kind(column),)


def _check_alike(name: str, parts: list[Column]) -> None:
    expected = _signature(parts[0])
    for position, part in enumerate(parts[1:], start=1):
        got = _signature(part)
        if got != expected:
            raise MergeError(
                f"column {name!r}: part 0 has {_signature_text(expected)}, part {position} has {_signature_text(got)}; "
                "expected the same kind, dtype and row shape in every part. Cast, pad or rename before concat."
            )


def _signature_text(signature: tuple[object, ...]) -> str:
    return ", ".join(str(sorted(map(str, part))) if isinstance(part, frozenset) else str(part) for part in signature)


def repeat(column: Column, times: int, shared: Shared, *, interleave: bool, out: Column | None = None) -> Column:
    """Repeat every row `times` times: a,a,b,b when interleaved, else a,b,a,b."""
    if isinstance(column, Tensor) and not column.is_nested:
        return dense.repeat(column, times, interleave=interleave, out=out)
    rows = rows_of(column)
    if is_tree(column):
        return map_leaves(column, rows * times, lambda leaf: repeat(leaf, times, shared, interleave=interleave))
    order = shared.once(("repeat", rows, times, interleave), None, lambda: _repeat_index(rows, times, interleave))
    return take(column, order, shared)


def _repeat_index(rows: int, times: int, interleave: bool) -> Tensor:
    order = torch.arange(rows)
    return order.repeat_interleave(times) if interleave else order.repeat(times)


def to_device(column: Column, device: torch.device, shared: Shared, *, non_blocking: bool = False) -> Column:
    """Move to a device; what is there already is not copied."""
    if isinstance(column, Tensor):
        if column.is_nested:
            return jagged.with_values(
                column, lambda values: dense.to_device(values, device, non_blocking=non_blocking), shared
            )
        return dense.to_device(column, device, non_blocking=non_blocking)
    if is_tree(column):
        leaves = {name: to_device(leaf, device, shared, non_blocking=non_blocking) for name, leaf in column.items()}
        return TensorDict(leaves, batch_size=column.batch_size, device=device)
    return column.to(device)


def clone(column: Column, shared: Shared) -> Column:
    """Copy the values into fresh, writable memory."""
    if isinstance(column, Tensor):
        if column.is_nested:
            return jagged.with_values(column, dense.clone, shared)
        return dense.clone(column)
    if is_tree(column):
        return map_leaves(column, rows_of(column), lambda leaf: clone(leaf, shared))
    return column.clone()


def equal(one: Column, other: Column, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """Say whether both hold the same kind of rows with the same values (NaN equals NaN)."""
    if one is other:
        return True
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and _equal_tensors(one, other, rtol, atol)
    if is_tree(one):
        return is_tree(other) and _equal_trees(one, other, rtol, atol)
    if kind(one) == "objects" and kind(other) == "objects":
        return one.batch_size == other.batch_size and _equal_objects(one, other)
    return type(one) is type(other) and bool((one == other).all())


def _equal_tensors(one: Tensor, other: Tensor, rtol: float, atol: float) -> bool:
    if one.is_nested != other.is_nested:
        return False
    if not one.is_nested:
        return dense.equal(one, other, rtol, atol)
    if one.dtype != other.dtype or jagged.row_shape(one) != jagged.row_shape(other) or len(one) != len(other):
        return False
    left, right = jagged.parts(one, Shared()), jagged.parts(other, Shared())
    return torch.equal(left.offsets.diff(), right.offsets.diff().to(left.offsets.device)) and dense.equal(
        left.values, right.values, rtol, atol
    )


def _equal_objects(one: Column, other: Column) -> bool:
    # A value for all rows and the same value in each row are the same rows.
    left, right = (listed(column) if is_stack(column) else column.tolist() for column in (one, other))
    return deep_equal(left, right)


def _equal_trees(one: Column, other: Column, rtol: float, atol: float) -> bool:
    if one.batch_size != other.batch_size or set(one.keys()) != set(other.keys()):
        return False
    return all(equal(leaf, other.get(name), rtol, atol) for name, leaf in one.items())


def nbytes(column: Column) -> int:
    """Bytes of the tensors in this column: what its rows show, not the memory behind a view."""
    if isinstance(column, Tensor):
        if not column.is_nested:
            return dense.nbytes(column)
        made = jagged.parts(column, Shared())
        return dense.nbytes(made.values) + dense.nbytes(made.offsets)
    if is_tree(column):
        return sum(nbytes(leaf) for leaf in column.values())
    return 0 if kind(column) == "objects" else int(column.bytes())
