"""`DataProto`: tensors, per-row Python objects and metadata in one value."""

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDictBase

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto.balancing import Balancing
from fanfold.dataproto.construct import Constructing
from fanfold.dataproto.equality import deep_equal
from fanfold.dataproto.loader import Loading
from fanfold.dataproto.objects import Array
from fanfold.dataproto.persist import Persisting
from fanfold.dataproto.pick import Picking
from fanfold.dataproto.show import Showing


class DataProto(Constructing, Picking, Loading, Balancing, Showing, Persisting):
    """A batch of B rows: tensor columns, non-tensor columns and metadata.

    Args:
        batch: a TensorDict with the batch size [B], or None. It is kept as it is, not copied.
        non_tensor_batch: numpy arrays [B, ...] by name
        meta_info: values of the whole batch
        merge: how `concat` unites values of `meta_info` that differ, by key

    Raises:
        ColumnError: the columns do not have the same number of rows, or cannot be columns.
        ColumnTypeError: a part or a column has the wrong type.

    Operations return new batches and leave this one alone, unless their first line says "in place"; slices and chunks
    share tensor memory with the batch they come from, copies do not, and `meta_info` is never shared.

    >>> batch = DataProto.from_dict({"ids": torch.arange(8).view(4, 2)}, {"prompt": list("abcd")}, {"step": 3})
    >>> [list(piece.non_tensor_batch["prompt"]) for piece in batch.chunk(2)]
    [['a', 'b'], ['c', 'd']]
    """

    __slots__ = ()

    def __init__(
        self,
        batch: TensorDictBase | None = None,
        non_tensor_batch: Mapping[str, Array] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        *,
        merge: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(batch, non_tensor_batch, meta_info, merge=merge)

    def equals(self, other: object, *, rtol: float = 0.0, atol: float = 0.0) -> bool:
        """Say whether another batch has the same columns, values and metadata; NaN equals NaN.

        Args:
            other: anything
            rtol: relative tolerance for floating-point tensors
            atol: absolute tolerance for floating-point tensors

        >>> batch = DataProto.from_dict({"x": torch.tensor([1.0, float("nan")])})
        >>> batch.equals(batch.clone())
        True
        """
        if not isinstance(other, DataProto) or len(self) != len(other):
            return False
        mine, theirs = self._columns(), other._columns()
        if mine.keys() != theirs.keys() or (self._tensors() is None) != (other._tensors() is None):
            return False
        if not all(column_rules.equal(column, theirs[name], rtol, atol) for name, column in mine.items()):
            return False
        return deep_equal(self.non_tensor_batch, other.non_tensor_batch) and deep_equal(self.meta_info, other.meta_info)

    def __eq__(self, other: object) -> bool:
        return self.equals(other) if isinstance(other, DataProto) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a batch can change, so it is no key of a dict
