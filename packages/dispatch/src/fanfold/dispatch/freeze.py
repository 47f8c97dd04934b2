"""Notice writes into batches of other libraries: a mark of each column before, compared with one after.

Marks are checksums of content. What is inside a Python object in a cell is not looked at.
"""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Watch = Callable[[], str | None]


def freeze_array(array: Any) -> Watch:
    """Watch a numpy array."""
    return _watch(array, lambda: zlib.crc32(array.tobytes()))


def freeze_tensor(tensor: Any) -> Watch:
    """Watch a torch tensor."""
    return _watch(tensor, lambda: _mark_of_tensor(tensor))


def freeze_tensordict(batch: Any) -> Watch:
    """Watch the tensors of a TensorDict, and of those inside it; entries that are no tensors have no memory to map."""

    def marks() -> dict[str, Any]:
        tensor, leaves = sys.modules["torch"].Tensor, batch.items(include_nested=True, leaves_only=True)
        columns = {name: column for name, column in leaves if isinstance(column, tensor)}
        return {
            ".".join(name) if isinstance(name, tuple) else name: _mark_of_tensor(column)
            for name, column in columns.items()
        }

    return _watch_columns(batch, marks)


def freeze_frame(frame: Any) -> Watch:
    """Watch a pandas DataFrame. It is copied: cells may be anything, and only pandas compares them all."""
    before = frame.copy()

    def written() -> str | None:
        if not frame.columns.equals(before.columns):
            return f"the DataFrame had columns {_listed(before.columns)}, and has {_listed(frame.columns)} now"
        columns = enumerate(frame.columns)
        return _told(frame, [name for at, name in columns if not frame.iloc[:, at].equals(before.iloc[:, at])])

    return written


def _mark_of_tensor(tensor: Any) -> Any:
    if tensor.is_nested:
        return _mark_of_tensor(tensor.values()), _mark_of_tensor(tensor.offsets())
    memory = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return zlib.crc32(memory.view(sys.modules["torch"].uint8).numpy()) if memory.numel() else 0


def _watch(batch: Any, mark: Callable[[], Any]) -> Watch:
    before = mark()
    shape = ", ".join(map(str, batch.shape))
    return lambda: None if mark() == before else f"{type(batch).__name__} of shape ({shape}) was written to"


def _watch_columns(batch: Any, marks: Callable[[], Mapping[str, Any]]) -> Watch:
    before = marks()

    def written() -> str | None:
        after = marks()
        if before.keys() != after.keys():
            return f"the {type(batch).__name__} had columns {_listed(before)}, and has {_listed(after)} now"
        return _told(batch, [name for name, mark in before.items() if after[name] != mark])

    return written


def _told(batch: Any, columns: Sequence[Any]) -> str | None:
    return f"columns {_listed(columns)} of the {type(batch).__name__} were written to" if columns else None


def _listed(columns: Iterable[Any]) -> str:
    return ", ".join(map(str, columns)) or "none"
