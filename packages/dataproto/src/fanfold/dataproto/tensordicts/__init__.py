"""Helpers for people who pass plain TensorDicts: values that are no tensors, jagged columns, rows.

The same rules as for `DataProto`: rows of every kind of column, equality by content, and nothing of the caller's
changed unless the first line says "in place".
"""

from fanfold.dataproto.tensordicts.nested import (
    concat_nested_tensors,
    maybe_fix_3d_position_ids,
    nested_tensor_from_tensor_list,
)
from fanfold.dataproto.tensordicts.rows import (
    assert_tensordict_eq,
    chunk_tensordict,
    concat_tensordict,
    concat_tensordict_with_none_bsz,
    contiguous,
    index_select_tensor_dict,
    make_iterator,
    pad_to_divisor,
    union_tensor_dict,
    unpad,
)
from fanfold.dataproto.tensordicts.values import (
    assign_non_tensor,
    assign_non_tensor_data,
    assign_non_tensor_stack,
    get,
    get_keys,
    get_non_tensor_data,
    get_tensordict,
    list_of_dict_to_tensordict,
    pop,
    pop_keys,
    unwrap_non_tensor_data,
)

__all__ = [
    "assert_tensordict_eq",
    "assign_non_tensor",
    "assign_non_tensor_data",
    "assign_non_tensor_stack",
    "chunk_tensordict",
    "concat_nested_tensors",
    "concat_tensordict",
    "concat_tensordict_with_none_bsz",
    "contiguous",
    "get",
    "get_keys",
    "get_non_tensor_data",
    "get_tensordict",
    "index_select_tensor_dict",
    "list_of_dict_to_tensordict",
    "make_iterator",
    "maybe_fix_3d_position_ids",
    "nested_tensor_from_tensor_list",
    "pad_to_divisor",
    "pop",
    "pop_keys",
    "union_tensor_dict",
    "unpad",
    "unwrap_non_tensor_data",
]
