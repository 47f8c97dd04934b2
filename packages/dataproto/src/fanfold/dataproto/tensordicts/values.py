"""Values of a TensorDict that are no tensors, and TensorDicts made of dictionaries. Letters: `B` rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import leaves, stack
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnError, ColumnTypeError, MergeError, MissingKeyError


def check(what: str, tensordict: object) -> None:
    """Refuse what is no TensorDict."""
    if not isinstance(tensordict, TensorDictBase):
        raise ColumnTypeError(f"{what} got a {type(tensordict).__name__}; expected a TensorDict")


def assign_non_tensor_data(tensor_dict: TensorDictBase, key: str, val: Any) -> None:
    """Store one Python value for the whole TensorDict, in place.

    Raises:
        ColumnTypeError: a stack of values for each row.

    >>> plain = TensorDict({}, batch_size=[2])
    >>> assign_non_tensor_data(plain, "lr", 0.1)
    >>> get(plain, "lr")
    0.1
    """
    check("assign_non_tensor_data", tensor_dict)
    if leaves.is_stack(val):
        raise ColumnTypeError(
            f"{key!r} is a NonTensorStack, one value for each row; expected one for all of them. Use "
            "assign_non_tensor_stack, or give it to get_tensordict among the columns."
        )
    whole: Column = NonTensorData(val, batch_size=tensor_dict.batch_size)
    tensor_dict.set(key, whole)


def assign_non_tensor_stack(tensor_dict: TensorDictBase, key: str, val: Sequence[Any]) -> None:
    """Store one Python value for each row, in place.

    Raises:
        ColumnError: not one value for each row.

    >>> plain = TensorDict({}, batch_size=[2])
    >>> assign_non_tensor_stack(plain, "tools", [["a"], []])
    >>> get(plain, "tools")
    [['a'], []]
    """
    check("assign_non_tensor_stack", tensor_dict)
    rows = list(val)
    if not tensor_dict.batch_size or len(rows) != tensor_dict.batch_size[0]:
        raise ColumnError(
            f"column {key!r} has {len(rows)} values; expected one for each row of {list(tensor_dict.batch_size)}"
        )
    tensor_dict.set(key, leaves.stack_of(rows))


def assign_non_tensor(tensor_dict: TensorDictBase, **kwargs: Any) -> TensorDictBase:
    """Store Python values in place and return the TensorDict: lists by row, wrapped values as they are, others whole.

    A list that is meant as one value: `assign_non_tensor_data`, or `NonTensorData([...])`.

    >>> plain = assign_non_tensor(TensorDict({}, batch_size=[2]), step=3, uid=["a", "b"])
    >>> get(plain, "step"), get(plain, "uid")
    (3, ['a', 'b'])
    """
    check("assign_non_tensor", tensor_dict)
    for key, value in kwargs.items():
        if leaves.is_shared_value(value) or leaves.is_stack(value):
            tensor_dict.set(key, value)
        elif isinstance(value, list):
            assign_non_tensor_stack(tensor_dict, key, value)
        else:
            assign_non_tensor_data(tensor_dict, key, value)
    return tensor_dict


def unwrap_non_tensor_data(data: Any) -> Any:
    """Return the value in a wrapper, or what is not wrapped as it is.

    >>> unwrap_non_tensor_data(NonTensorData(3)), unwrap_non_tensor_data(4)
    (3, 4)
    """
    return data.data if leaves.is_shared_value(data) else data


def get_non_tensor_data(data: TensorDictBase, key: str, default: Any) -> Any:
    """Return the Python value of a key (a list where there is one for each row), or the default.

    >>> get_non_tensor_data(assign_non_tensor(TensorDict({}, batch_size=[2]), uid=["a", "b"]), "uid", None)
    ['a', 'b']
    """
    return get(data, key, default)


def get(tensordict: TensorDictBase, key: str, default: Any = None) -> Any:
    """Return a tensor or TensorDict as it is, Python values unwrapped, a list where there is one for each row.

    >>> made = get_tensordict({"x": torch.arange(2), "uid": ["a", "b"]}, {"step": 1})
    >>> get(made, "x"), get(made, "uid"), get(made, "step"), get(made, "lr", 0.1)
    (tensor([0, 1]), ['a', 'b'], 1, 0.1)
    """
    check("get", tensordict)
    present = dict(tensordict.items())
    # TensorDict.get unwraps values in some versions and not in others; items never does.
    return unwrapped(present[key]) if key in present else default


def unwrapped(column: Column) -> Any:
    """Return Python values instead of their wrappers."""
    if leaves.is_stack(column):
        return leaves.listed(column)
    return unwrap_non_tensor_data(column)


def get_keys(tensordict: TensorDictBase, keys: Iterable[str]) -> TensorDict:
    """Return a TensorDict with some of the keys and the same batch size.

    Raises:
        MissingKeyError: there is no such key.

    >>> sorted(get_keys(get_tensordict({"x": torch.arange(2), "y": torch.ones(2)}), ["y"]).keys())
    ['y']
    """
    check("get_keys", tensordict)
    present, wanted = dict(tensordict.items()), list(keys)
    for key in wanted:
        if key not in present:
            raise MissingKeyError(f"there is no {key!r}; the TensorDict has {sorted(map(str, present))}")
    chosen = {key: present[key] for key in wanted}
    return TensorDict(chosen, batch_size=tensordict.batch_size, device=tensordict.device)


def pop_keys(tensordict: TensorDictBase, keys: Iterable[str]) -> TensorDict:
    """Remove keys in place and return them as a TensorDict with the same batch size; all or nothing.

    Raises:
        MissingKeyError: there is no such key; then nothing was removed.

    >>> made = get_tensordict({"x": torch.arange(2), "y": torch.ones(2)})
    >>> sorted(pop_keys(made, ["y"]).keys()), sorted(made.keys())
    (['y'], ['x'])
    """
    wanted = list(keys)
    taken = get_keys(tensordict, wanted)
    for key in dict.fromkeys(wanted):
        tensordict.del_(key)
    return taken


def pop(tensordict: TensorDictBase, key: str, default: Any = None) -> Any:
    """Remove a key in place and return what `get` returns, or the default.

    >>> made = get_tensordict({"x": torch.arange(2), "uid": ["a", "b"]})
    >>> pop(made, "uid"), pop(made, "uid", "gone")
    (['a', 'b'], 'gone')
    """
    found = get(tensordict, key, default)
    if key in set(tensordict.keys()):
        tensordict.del_(key)
    return found


def get_tensordict(tensor_dict: Mapping[str, Any], non_tensor_dict: Mapping[str, Any] | None = None) -> TensorDict:
    """Make a TensorDict of columns and values of the whole batch; neither dict is changed.

    Args:
        tensor_dict: tensors [B, ...], dense or jagged; numeric arrays, which become tensors; lists with one value for
            each row, where rows that are tensors become one column
        non_tensor_dict: values of the whole batch

    Raises:
        ColumnError: columns with different numbers of rows, 0-d tensors, a key in both dicts.

    >>> made = get_tensordict({"x": torch.zeros(2), "uid": ["a", "b"]}, {"step": 1})
    >>> made.batch_size, get(made, "uid"), get(made, "step")
    (torch.Size([2]), ['a', 'b'], 1)
    """
    values = dict(non_tensor_dict or {})
    for key in tensor_dict.keys() & values.keys():
        raise ColumnError(f"{key!r} is a column and a value of the whole batch; expected one of them")
    columns = {name: _column_of(name, value) for name, value in tensor_dict.items()}
    sizes = {name: column_rules.rows_of(column) for name, column in columns.items()}
    rows = next(iter(sizes.values()), None)
    for name, size in sizes.items():
        if size != rows:
            raise ColumnError(f"column {name!r} has {size} rows; expected {rows}, as column {next(iter(sizes))!r} has")
    made = TensorDict(columns, batch_size=[] if rows is None else [rows])
    for key, value in values.items():
        assign_non_tensor_data(made, key, unwrap_non_tensor_data(value))
    return made


def _column_of(name: str, value: Any) -> Column:
    if isinstance(value, np.ndarray):
        value = _array_rows(value)
    if isinstance(value, list):
        if value and all(isinstance(row, Tensor) for row in value):
            return stack.stacked(name, value)
        return leaves.stack_of(value)
    column_rules.check(name, value)
    return value


def _array_rows(array: np.ndarray[Any, Any]) -> Any:
    try:
        return torch.from_numpy(array)
    except TypeError:
        return list(array)


def list_of_dict_to_tensordict(list_of_dicts: Sequence[Mapping[str, Any]]) -> TensorDict:
    """Make a TensorDict of rows: tensors are stacked or jagged, other values are kept one for each row.

    Raises:
        MergeError: no rows, or a row with other keys; names its position.

    >>> made = list_of_dict_to_tensordict([{"x": torch.zeros(2), "s": "a"}, {"x": torch.zeros(3), "s": "b"}])
    >>> made["x"].is_nested, get(made, "s")
    (True, ['a', 'b'])
    """
    rows = list(list_of_dicts)
    if not rows:
        raise MergeError(
            "list_of_dict_to_tensordict got no rows; expected at least one, because only a row knows the keys"
        )
    names = stack.common_names("dict", rows)
    columns = {name: _column_of(name, [row[name] for row in rows]) for name in names}
    return TensorDict(columns, batch_size=[len(rows)])
