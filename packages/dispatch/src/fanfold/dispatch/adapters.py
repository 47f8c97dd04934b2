"""Batch types of other libraries, found by class name: nothing is imported before a value of the class is met."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.errors import BatchTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

Operations = dict[str, Any]


def _torch_tensor() -> Operations:
    torch = _loaded("torch")
    return {
        "length": _length_of_tensor,
        "rows": _slice,
        "concat": lambda parts: torch.cat(list(parts)),
        "take": lambda tensor, rows: tensor[torch.tensor(list(rows), dtype=torch.long, device=tensor.device)],
        "nbytes": lambda tensor: tensor.numel() * tensor.element_size(),
        "freeze": lambda tensor: _watch(
            tensor, lambda: tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        ),
        "accepts": _has_rows,
    }


def _numpy_array() -> Operations:
    numpy = _loaded("numpy")
    return {
        "length": len,
        "rows": _slice,
        "concat": lambda parts: numpy.concatenate(list(parts)),
        "take": lambda array, rows: array[numpy.array(rows, dtype=numpy.intp)],
        "nbytes": lambda array: array.nbytes,
        "freeze": lambda array: _watch(array, array.tobytes),
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
        "nbytes": lambda batch: sum(tensor.numel() * tensor.element_size() for tensor in batch.values(True, True)),
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
    }


def _arrow_table() -> Operations:
    pyarrow = _loaded("pyarrow")
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
        raise BatchTypeError(
            "a nested tensor has no rows that torch can cut or put together; got one where a batch is divided. Carry "
            "it in a batch class that can, or send it whole with Replicate(x)"
        )
    return len(tensor)


def _item(batch: Any, name: str) -> Any:
    return batch[name]


def _has_rows(array: Any) -> bool:
    return len(array.shape) > 0


def _watch(batch: Any, content: Callable[[], bytes]) -> Callable[[], str | None]:
    before = content()
    return lambda: (
        None if content() == before else f"{type(batch).__name__} of shape {tuple(batch.shape)} was written to"
    )
