"""From rows back to a batch. Letters: `B` rows."""

from collections.abc import Sequence

from tensordict import TensorDict

from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.errors import ColumnTypeError, MergeError
from fanfold.dataproto.item import DataProtoItem
from fanfold.dataproto.merge import merged_meta
from fanfold.dataproto.meta import copy_meta_deep
from fanfold.dataproto.objects import object_column
from fanfold.dataproto.stack import common_names, stacked


def collate_fn(x: Sequence[DataProtoItem]) -> DataProto:
    """Make a batch of rows, as a data loader does; rows whose tensors differ in one size make a jagged column.

    `meta_info` is merged as by `concat`. Non-tensor columns become object columns.

    Raises:
        MergeError: no rows, or rows with different columns.
        ColumnError: tensors that neither stack nor differ in exactly one dimension.

    >>> batch = DataProto.from_dict({"x": torch.arange(3)}, {"s": ["a", "b", "c"]})
    >>> collate_fn([batch[2], batch[0]])["x"]
    tensor([2, 0])
    """
    rows = list(x)
    if not rows:
        raise MergeError("collate_fn got no rows; expected at least one, because only a row knows the columns")
    for position, row in enumerate(rows):
        if not isinstance(row, DataProtoItem):
            raise ColumnTypeError(f"collate_fn: entry {position} is a {type(row).__name__}; expected a DataProtoItem")
    batches = [None if row.batch is None else dict(row.batch.items()) for row in rows]
    names = common_names("tensor", [batch or {} for batch in batches])
    tensors = {name: stacked(name, [batch[name] for batch in batches if batch is not None]) for name in names}
    others = common_names("non-tensor", [row.non_tensor_batch for row in rows])
    arrays = {name: object_column(row.non_tensor_batch[name] for row in rows) for name in others}
    first = rows[0].batch
    batch = None if first is None else TensorDict(tensors, batch_size=[len(rows)], device=first.device)
    return DataProto(batch, arrays, copy_meta_deep(merged_meta([row.meta_info for row in rows], {})))
