"""Batch types of other libraries, found by class name: nothing is imported before a value of the class is met."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Operations = dict[str, Any]


def _module(name: str) -> Any:
    # A value of the class exists, so its library is loaded: this is a look-up, never an import.
    return sys.modules[name]


def _slice(batch: Any, start: int, stop: int) -> Any:
    return batch[start:stop]


def _has_rows(array: Any) -> bool:
    return len(array.shape) > 0


def _torch_tensor() -> Operations:
    torch = _module("torch")
    return {
        "length": len,
        "rows": _slice,
        "concat": lambda parts: torch.cat(list(parts)),
        "take": lambda batch, rows: batch[torch.as_tensor(list(rows), dtype=torch.long, device=batch.device)],
        "nbytes": lambda batch: batch.numel() * batch.element_size(),
        "accepts": _has_rows,
    }


def _numpy_array() -> Operations:
    numpy = _module("numpy")
    return {
        "length": len,
        "rows": _slice,
        "concat": lambda parts: numpy.concatenate(list(parts)),
        "take": lambda batch, rows: batch[numpy.asarray(rows, dtype=numpy.intp)],
        "nbytes": lambda batch: batch.nbytes,
        "accepts": _has_rows,
    }


def _tensordict() -> Operations:
    torch, tensordict = _module("torch"), _module("tensordict")
    return (
        {
            "length": len,
            "rows": _slice,
            "concat": lambda parts: torch.cat(list(parts)) if len(parts) > 1 else parts[0],
            "take": lambda batch, rows: batch[torch.as_tensor(list(rows), dtype=torch.long)],
            "select": lambda batch, columns: batch.select(*columns),
            "columns": lambda batch: list(batch.keys()),
            "column": lambda batch, name: batch[name],
            "nbytes": lambda batch: batch.bytes(),
            "accepts": _has_rows,
        }
        if tensordict
        else {}
    )


def _pandas_frame() -> Operations:
    pandas = _module("pandas")
    return {
        "length": len,
        "rows": lambda frame, start, stop: frame.iloc[start:stop],
        "concat": lambda parts: pandas.concat(list(parts)),
        "take": lambda frame, rows: frame.iloc[list(rows)],
        "select": lambda frame, columns: frame[list(columns)],
        "columns": lambda frame: list(frame.columns),
        "column": lambda frame, name: frame[name],
        "nbytes": lambda frame: int(frame.memory_usage().sum()),
    }


def _arrow_table() -> Operations:
    pyarrow = _module("pyarrow")
    return {
        "length": lambda table: table.num_rows,
        "rows": lambda table, start, stop: table.slice(start, stop - start),
        "concat": lambda parts: pyarrow.concat_tables(list(parts)),
        "take": lambda table, rows: table.take(list(rows)),
        "select": lambda table, columns: table.select(list(columns)),
        "columns": lambda table: list(table.column_names),
        "column": lambda table, name: table[name].to_pylist(),
        "nbytes": lambda table: table.nbytes,
    }


ADAPTERS: dict[str, Callable[[], Operations]] = {
    "torch.Tensor": _torch_tensor,
    "numpy.ndarray": _numpy_array,
    "tensordict._td.TensorDict": _tensordict,
    "tensordict.base.TensorDictBase": _tensordict,
    "pandas.core.frame.DataFrame": _pandas_frame,
    "pandas.DataFrame": _pandas_frame,
    "pyarrow.lib.Table": _arrow_table,
}
