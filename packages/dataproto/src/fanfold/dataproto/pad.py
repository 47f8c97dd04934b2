"""Padding to a multiple, and taking it off again. Letters: `B` rows."""

from typing import TypeVar

from fanfold.dataproto import indexing
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.errors import ColumnTypeError, SplitError

P = TypeVar("P", bound=DataProto)


def pad_dataproto_to_divisor(data: P, size_divisor: int) -> tuple[P, int]:
    """Return the batch with rows added until `size_divisor` divides their number, and how many were added.

    The added rows repeat the batch cyclically from its start, on a copy. When nothing has to be added, the same batch
    comes back; so does one without rows, which has nothing to repeat.

    Raises:
        ColumnTypeError: not a DataProto.
        SplitError: the divisor is below 1.

    >>> padded, added = pad_dataproto_to_divisor(DataProto.from_dict({"x": torch.arange(3)}), 2)
    >>> padded["x"].tolist(), added
    ([0, 1, 2, 0], 1)
    """
    if not isinstance(data, DataProto):
        raise ColumnTypeError(f"got a {type(data).__name__}; expected a DataProto")
    divisor, rows = indexing.at_least("size_divisor", size_divisor, 1), len(data)
    padded = data._padded(-rows % divisor)
    return padded, len(padded) - rows


def unpad_dataproto(data: P, pad_size: int) -> P:
    """Return the batch without its last `pad_size` rows; the same batch when that is 0.

    Raises:
        SplitError: fewer rows than that.

    >>> unpad_dataproto(DataProto.from_dict({"x": torch.arange(4)}), 1)["x"].tolist()
    [0, 1, 2]
    """
    if not isinstance(data, DataProto):
        raise ColumnTypeError(f"got a {type(data).__name__}; expected a DataProto")
    amount, rows = indexing.at_least("pad_size", pad_size, 0), len(data)
    if amount > rows:
        raise SplitError(f"{amount} padding rows cannot be taken off a batch of {rows} rows")
    return data.slice(0, rows - amount) if amount else data
