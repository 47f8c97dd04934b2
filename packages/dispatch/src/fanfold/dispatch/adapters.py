"""Batch types of other libraries, found by class name: nothing is imported before a value of the class is met."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.freeze import freeze_array, freeze_frame, freeze_tensor, freeze_tensordict
from fanfold.dispatch.jagged import check_jagged, concat_of_jagged, rows_of_jagged, take_of_jagged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Operations = dict[str, Any]


def _torch_tensor() -> Operations:
    torch = _loaded("torch")

    def concat(parts: Sequence[Any]) -> Any:
        return concat_of_jagged(parts) if parts[0].is_nested else torch.cat(list(parts))

    def take(tensor: Any, rows: Sequence[int]) -> Any:
        if tensor.is_nested:
            return take_of_jagged(tensor, rows)
        return tensor[torch.tensor(list(rows), dtype=torch.long, device=tensor.device)]

    return {
        "length": _length_of_tensor,
        "rows": lambda tensor, a, b: rows_of_jagged(tensor, a, b) if tensor.is_nested else tensor[a:b],
        "concat": concat,
        "take": take,
        "nbytes": _nbytes_of_tensor,
        "freeze": freeze_tensor,
        "accepts": lambda tensor: tensor.dim() > 0,
    }


def _numpy_array() -> Operations:
    numpy = _loaded("numpy")
    return {
        "length": len,
        "rows": _slice,
        "concat": lambda parts: numpy.concatenate(list(parts)),
        "take": lambda array, rows: array[numpy.array(rows, dtype=numpy.intp)],
        "nbytes": lambda array: array.nbytes,
        "freeze": freeze_array,
        "accepts": _has_rows,
    }


def _masked_array() -> Operations:
    # numpy.concatenate would drop the masks.
    return {**_numpy_array(), "concat": lambda parts: _loaded("numpy.ma").concatenate(list(parts))}


def _tensordict() -> Operations:
    torch = _loaded("torch")
    return {
        "length": len,
        "rows": _slice,
        "concat": lambda parts: torch.cat(list(parts)),
        "take": lambda batch, rows: batch[torch.tensor(list(rows), dtype=torch.long)],
        "select": lambda batch, columns: batch.select(*columns),
        "columns": lambda batch: list(batch.keys()),
        "column": _item,
        "nbytes": lambda batch: sum(map(_nbytes_of_tensor, batch.values(True, True))),
        "freeze": freeze_tensordict,
        "accepts": _has_rows,
    }


def _pandas_frame() -> Operations:
    pandas = _loaded("pandas")
    return {
        "length": len,
        "rows": lambda frame, start, stop: frame.iloc[start:stop],
        "concat": lambda parts: pandas.concat(list(parts)),
        "take": lambda frame, rows: frame.iloc[list(rows)],
        "select": lambda frame, columns: frame[list(columns)],
        "columns": lambda frame: list(frame.columns),
        "column": _item,
        "nbytes": lambda frame: int(frame.memory_usage().sum()),
        "freeze": freeze_frame,
    }


def _arrow_table() -> Operations:
    pyarrow = _loaded("pyarrow")
    # No freeze: nobody can write into a table.
    return {
        "length": lambda table: table.num_rows,
        "rows": lambda table, start, stop: table.slice(start, stop - start),
        "concat": lambda parts: pyarrow.concat_tables(list(parts)),
        "take": lambda table, rows: table.take(pyarrow.array(list(rows), pyarrow.int64())),
        "select": lambda table, columns: table.select(list(columns)),
        "columns": lambda table: list(table.column_names),
        "column": lambda table, name: table[name].to_pylist(),
        "nbytes": lambda table: table.nbytes,
    }


ADAPTERS: dict[str, Callable[[], Operations]] = {
    "numpy.ma.MaskedArray": _masked_array,  # where newer numpy says its class lives
    "numpy.ma.core.MaskedArray": _masked_array,
    "numpy.ndarray": _numpy_array,
    "pandas.DataFrame": _pandas_frame,  # where pandas 3 says its class lives
    "pandas.core.frame.DataFrame": _pandas_frame,
    "pyarrow.lib.Table": _arrow_table,
    "tensordict.base.TensorDictBase": _tensordict,
    "torch.Tensor": _torch_tensor,
}


def _loaded(library: str) -> Any:
    # A value of one of its classes exists, so the library is there: a look-up, never an import.
    return sys.modules[library]


def _slice(batch: Any, start: int, stop: int) -> Any:
    return batch[start:stop]


def _length_of_tensor(tensor: Any) -> int:
    if tensor.is_nested:
        check_jagged(tensor)
    return int(tensor.shape[0])


def _nbytes_of_tensor(tensor: Any) -> int:
    dense = tensor.values() if tensor.is_nested else tensor
    return int(dense.numel() * dense.element_size())


def _item(batch: Any, name: str) -> Any:
    return batch[name]


def _has_rows(array: Any) -> bool:
    return len(array.shape) > 0
