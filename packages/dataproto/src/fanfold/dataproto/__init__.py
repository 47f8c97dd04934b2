"""The batch container for training: tensors, per-row Python objects and metadata in one value."""

from fanfold.dataproto.balance import BalancedSplit
from fanfold.dataproto.batch import DataProto
from fanfold.dataproto.collate import collate_fn
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
    NotEqualError,
    RemoteError,
    RemoteTimeoutError,
    RowIndexError,
    SchemaError,
    SplitError,
    WireError,
)
from fanfold.dataproto.fold import fold_batch_dim, unfold_batch_dim
from fanfold.dataproto.gather import all_gather_data_proto
from fanfold.dataproto.item import DataProtoItem
from fanfold.dataproto.legacy import list_of_dict_to_dict_of_list, union_numpy_dict, union_tensor_dict
from fanfold.dataproto.loader import MiniBatches
from fanfold.dataproto.objects import object_column
from fanfold.dataproto.pad import pad_dataproto_to_divisor, unpad_dataproto
from fanfold.dataproto.parts import Header, Part, header_of
from fanfold.dataproto.plain import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from fanfold.dataproto.positions import position_ids_from_mask
from fanfold.dataproto.remote import DataProtoFuture, PartStore
from fanfold.dataproto.schema import ColumnSchema, Schema
from fanfold.dataproto.staged import RemoteBatch

__all__ = [
    "BalancedSplit",
    "ColumnError",
    "ColumnSchema",
    "ColumnTypeError",
    "DataProto",
    "DataProtoConfig",
    "DataProtoError",
    "DataProtoFuture",
    "DataProtoItem",
    "FanfoldError",
    "FileFormatError",
    "Header",
    "MergeError",
    "MiniBatches",
    "MissingKeyError",
    "NotEqualError",
    "Part",
    "PartStore",
    "RemoteBatch",
    "RemoteError",
    "RemoteTimeoutError",
    "RowIndexError",
    "Schema",
    "SchemaError",
    "SplitError",
    "WireError",
    "all_gather_data_proto",
    "collate_fn",
    "deep_equal",
    "deserialize_single_tensor",
    "deserialize_tensordict",
    "fold_batch_dim",
    "header_of",
    "list_of_dict_to_dict_of_list",
    "object_column",
    "pad_dataproto_to_divisor",
    "position_ids_from_mask",
    "serialize_single_tensor",
    "serialize_tensordict",
    "unfold_batch_dim",
    "union_numpy_dict",
    "union_tensor_dict",
    "unpad_dataproto",
]
