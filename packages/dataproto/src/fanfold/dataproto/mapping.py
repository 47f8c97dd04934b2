"""Files of the safetensors format: written atomically without copies, read by mapping them.

The format is a length (8 bytes), a JSON head with dtype, shape and position of every entry, and the entries one after
the other. `safe_open` judges whether a file is valid. The entries themselves are mapped here, privately: the tensors
that `safe_open` hands out may or may not be written to, depending on its version, and a wrong guess ends the process.
"""

import contextlib
import json
import mmap
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from fanfold.dataproto import budget
from fanfold.dataproto.errors import FileFormatError

_ALIGNMENT = 64
_LENGTH = 8


class ToWrite(NamedTuple):
    """One entry to write: dtype code, shape, anything with a buffer, and the alignment in bytes that readers need."""

    code: str
    shape: tuple[int, ...]
    memory: Any
    alignment: int = 1


class Entry(NamedTuple):
    """One entry of a mapped file; writing to its memory does not change the file."""

    code: str
    memory: memoryview


def entries(path: str) -> tuple[dict[str, Entry], dict[str, str]]:
    """Map a file and return its entries and what it says about itself.

    Raises:
        FileFormatError: truncated, or no safetensors file.
        OSError: it cannot be opened.
    """
    whole = _mapped(path)
    try:
        size = int.from_bytes(whole[:_LENGTH], "little")
        budget.check(whole[_LENGTH : _LENGTH + size])
        _judge(path)
        head = json.loads(str(whole[_LENGTH : _LENGTH + size], "utf-8"))
        about = head.pop("__metadata__", {})
        data = whole[_LENGTH + size :]
        found = {key: Entry(entry["dtype"], data[slice(*entry["data_offsets"])]) for key, entry in head.items()}
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileFormatError(f"{path} is no file of a batch, or was cut off: {error}") from None
    return found, about


def _mapped(path: str) -> memoryview:
    with Path(path).open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise FileFormatError(f"{path} is empty")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))


def _judge(path: str) -> None:
    with safe_open(path, framework="np") as file:
        file.keys()


def write(path: Path, entries: Mapping[str, ToWrite], about: Mapping[str, str]) -> None:
    """Write entries to a file, atomically: a temporary file beside it, flushed to the disk, takes its name."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        with temporary.open("xb") as file:
            file.writelines(_chunks(entries, about))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(folder: Path) -> None:
    # The new name is durable once its directory is; file systems that cannot open a directory do not need it.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _chunks(entries: Mapping[str, ToWrite], about: Mapping[str, str]) -> Iterable[Any]:
    # Widest first: the format allows no gaps, and so every tensor is aligned to its own width.
    ordered = sorted(entries.items(), key=lambda item: -item[1].alignment)
    head: dict[str, Any] = {"__metadata__": dict(about)}
    position = 0
    for key, entry in ordered:
        size = memoryview(entry.memory).nbytes
        head[key] = {"dtype": entry.code, "shape": list(entry.shape), "data_offsets": [position, position + size]}
        position += size
    text = budget.filled(json.dumps(head, separators=(",", ":")).encode())
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return [len(text).to_bytes(8, "little"), text, *(entry.memory for _, entry in ordered)]
