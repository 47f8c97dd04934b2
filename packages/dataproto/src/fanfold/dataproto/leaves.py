"""Columns of a TensorDict that are no tensors: one Python value for all rows, or one for each row.

tensordict has no stack of no rows in its older versions, so such a column is a shared value that says so.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from tensordict import NonTensorData, NonTensorStack

from fanfold.dataproto.errors import WireError

# The classes are made by a decorator that type checkers cannot see through.
Leaf: TypeAlias = Any


class _NoRows:
    """The value of a column that has one Python value for each of its 0 rows."""

    def __repr__(self) -> str:
        return "<no rows>"

    def __reduce__(self) -> str:
        return "NO_ROWS"


NO_ROWS = _NoRows()


def is_shared_value(column: object) -> bool:
    """Say whether this is one Python object that stands in every row."""
    return isinstance(column, NonTensorData) and column.data is not NO_ROWS


def is_stack(column: object) -> bool:
    """Say whether this is one Python object for each row."""
    return isinstance(column, NonTensorStack) or (isinstance(column, NonTensorData) and column.data is NO_ROWS)


def rows_of_stack(column: Leaf) -> list[Leaf]:
    """Return the leaf of each row."""
    if isinstance(column, NonTensorData):
        return []
    return list(column.tensordicts) if column.stack_dim == 0 else list(column.unbind(0))


def listed(column: Leaf) -> list[Any]:
    """Return the Python value of each row, nested as deep as the batch size is long."""
    values: list[Any] = [] if isinstance(column, NonTensorData) else column.tolist()
    return values


def restack(rows: list[Leaf], like: Leaf) -> Leaf:
    """Make a stack of row leaves; without any row it has the batch size of `like` after the rows."""
    return NonTensorStack(*rows) if rows else NonTensorData(NO_ROWS, batch_size=[0, *like.batch_size[1:]])


def stack_of(values: Iterable[Any]) -> Leaf:
    """Make a column of one Python value for each row; what is wrapped already stays as it is."""
    rows = [value if is_shared_value(value) else NonTensorData(value) for value in values]
    return NonTensorStack(*rows) if rows else NonTensorData(NO_ROWS, batch_size=[0])


def unlisted(values: Any, batch_size: Sequence[int]) -> Leaf:
    """Make a column of what `listed` returned.

    Raises:
        WireError: another number of values than the batch size says.
    """
    if not batch_size:
        return NonTensorData(values)
    if not isinstance(values, list) or len(values) != batch_size[0]:
        raise WireError(f"a column of objects has no list of {batch_size[0]} values")
    if not values:
        return NonTensorData(NO_ROWS, batch_size=list(batch_size))
    return NonTensorStack(*[unlisted(value, batch_size[1:]) for value in values])
