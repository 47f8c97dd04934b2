"""The batch container for reinforcement learning and training: tensors, per-row Python objects and metadata in one value."""

from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.config import DataProtoConfig
from fanfold.dataproto.equality import deep_equal
from fanfold.dataproto.errors import (
    ColumnError,
    ColumnTypeError,
    DataProtoError,
    FanfoldError,
    FileFormatError,
    MergeError,
    MissingKeyError,
    RemoteError,
    RemoteTimeoutError,
    RowIndexError,
    SchemaError,
    SplitError,
    WireError,
)
from fanfold.dataproto.item import DataProtoItem
from fanfold.dataproto.legacy import list_of_dict_to_dict_of_list, union_numpy_dict, union_tensor_dict
from fanfold.dataproto.objects import object_column
from fanfold.dataproto.pad import pad_dataproto_to_divisor, unpad_dataproto
from fanfold.dataproto.positions import position_ids_from_mask

__all__ = [
    "ColumnError",
    "ColumnTypeError",
    "DataProto",
    "DataProtoConfig",
    "DataProtoError",
    "DataProtoItem",
    "FanfoldError",
    "FileFormatError",
    "MergeError",
    "MissingKeyError",
    "RemoteError",
    "RemoteTimeoutError",
    "RowIndexError",
    "SchemaError",
    "SplitError",
    "WireError",
    "deep_equal",
    "list_of_dict_to_dict_of_list",
    "object_column",
    "pad_dataproto_to_divisor",
    "position_ids_from_mask",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
]
