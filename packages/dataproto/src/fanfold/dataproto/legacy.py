"""Functions beside `DataProto` that people know by these names. Letters: `B` rows."""

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto.equality import deep_equal
from fanfold.dataproto.errors import ColumnTypeError, MergeError
from fanfold.dataproto.objects import Array
from fanfold.dataproto.text import short


def union_tensor_dict(tensor_dict1: TensorDictBase, tensor_dict2: TensorDictBase) -> TensorDictBase:
    """Add the columns of the second TensorDict to the first in place and return the first; all or nothing.

    Raises:
        MergeError: other batch sizes, or a column that both have with different values.

    >>> one, two = TensorDict({"a": torch.zeros(2)}, [2]), TensorDict({"b": torch.ones(2)}, [2])
    >>> sorted(union_tensor_dict(one, two).keys())
    ['a', 'b']
    """
    for each in (tensor_dict1, tensor_dict2):
        if not isinstance(each, TensorDictBase):
            raise ColumnTypeError(f"union_tensor_dict got a {type(each).__name__}; expected a TensorDict")
    if tensor_dict1.batch_size != tensor_dict2.batch_size:
        raise MergeError(
            f"union of TensorDicts with the batch sizes {list(tensor_dict1.batch_size)} and "
            f"{list(tensor_dict2.batch_size)}; expected the same"
        )
    mine = dict(tensor_dict1.items())
    for name, column in tensor_dict2.items():
        if name in mine and not column_rules.equal(mine[name], column):
            raise MergeError(f"column {name!r} differs: {short(mine[name])} and {short(column)}; expected equal values")
    for name, column in tensor_dict2.items():
        if name not in mine:
            tensor_dict1[name] = column
    return tensor_dict1


def union_numpy_dict(tensor_dict1: dict[str, Array], tensor_dict2: dict[str, Array]) -> dict[str, Array]:
    """Add the arrays of the second dict to the first in place and return the first; all or nothing.

    Raises:
        ColumnTypeError: a shared value is no array.
        MergeError: an array that both have with different content, or arrays with different numbers of rows.

    >>> union_numpy_dict({"a": np.zeros(1)}, {"a": np.zeros(1), "b": np.ones(1)})
    {'a': array([0.]), 'b': array([1.])}
    """
    for name in tensor_dict1.keys() & tensor_dict2.keys():
        one, two = tensor_dict1[name], tensor_dict2[name]
        if not hasattr(one, "dtype") or not hasattr(two, "dtype"):
            raise ColumnTypeError(f"{name!r} is a {type(one).__name__} and a {type(two).__name__}; expected arrays")
        if not deep_equal(one, two):
            raise MergeError(f"{name!r} differs: {short(one)} and {short(two)}; expected equal arrays")
    united = {**tensor_dict1, **{name: array for name, array in tensor_dict2.items() if name not in tensor_dict1}}
    rows = {name: array.shape[0] for name, array in united.items() if getattr(array, "ndim", 0)}
    first = next(iter(rows), None)
    for name, count in rows.items():
        if first is not None and count != rows[first]:
            raise MergeError(f"{name!r} has {count} rows, {first!r} has {rows[first]}; expected as many in every array")
    tensor_dict1.update(united)
    return tensor_dict1


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Turn dicts with the same keys into one dict of lists.

    Raises:
        MergeError: a dict lacks a key or has another one; names its position.

    >>> list_of_dict_to_dict_of_list([{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    if not list_of_dict:
        return {}
    keys = list_of_dict[0].keys()
    for position, entry in enumerate(list_of_dict):
        if entry.keys() != keys:
            raise MergeError(f"dict {position} has the keys {sorted(entry)}; expected {sorted(keys)}, as dict 0 has")
    return {key: [entry[key] for entry in list_of_dict] for key in keys}
