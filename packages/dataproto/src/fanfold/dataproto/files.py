"""A batch as a file: tensors in the safetensors format, everything else as JSON inside it.

    column number:name  values of a dense column, in its own dtype where every safetensors knows it, else as bytes
    head                JSON: version, rows, for each column how it is read, which entries hold it
    other entries       JSON of object columns and meta_info, arrays and tensors of their cells

Any safetensors reader can list and read the entries. Loading maps the file; what is written to loaded tensors stays in
memory and never reaches the file. Nothing in a file is executed unless `allow_pickle=True` is passed.
"""

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, TensorDict
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import jagged, jsonable, leaves, mapping
from fanfold.dataproto.buffers import dtype_name, dtype_named, memory_of, tensor_over
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import DataProtoError, FileFormatError, MissingKeyError, WireError
from fanfold.dataproto.jagged import Parts, Shared
from fanfold.dataproto.mapping import ToWrite
from fanfold.dataproto.meta import Meta
from fanfold.dataproto.objects import Array
from fanfold.dataproto.table import Table

StrPath: TypeAlias = str | os.PathLike[str]
FORMAT, VERSION = "fanfold.dataproto", 1
_HEAD = "head"
_ROW_OF_A_STACK = 640  # bytes of the object in which tensordict wraps one value
_NATIVE = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class _Entries:
    """What will be written, in the order of the file."""

    def __init__(self) -> None:
        self.found: dict[str, ToWrite] = {}

    def tensor(self, label: str, tensor: Tensor) -> dict[str, Any]:
        key, code = f"{len(self.found)}:{label}", _NATIVE.get(tensor.dtype)
        memory = memory_of(tensor).reshape(-1).view(np.uint8) if tensor.numel() else np.empty(0, dtype=np.uint8)
        shape = tuple(tensor.shape) if code else (memory.nbytes,)
        self.found[key] = ToWrite(code or "U8", shape, memory, tensor.dtype.itemsize)
        return {"at": key, "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}

    def array(self, label: str, array: NDArray[Any]) -> dict[str, Any]:
        key = f"{len(self.found)}:{label}"
        memory = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, dtype=np.uint8)
        self.found[key] = ToWrite("U8", (memory.nbytes,), memory, array.dtype.alignment)
        return {"at": key, "numpy": array.dtype.str, "shape": list(array.shape)}

    def text(self, label: str, value: Any, extra: int = 0) -> str:
        key = _HEAD if label == _HEAD else f"{len(self.found)}:{label}"
        raw = jsonable.dumps(value, extra)
        self.found[key] = ToWrite("U8", (len(raw),), raw)
        return key

    def keep(self, label: str, value: Any) -> dict[str, Any] | None:
        if isinstance(value, Tensor):
            plain = value.layout == torch.strided and not value.is_quantized
            return self.tensor(label, value) if plain else None
        named = value.dtype.kind in "biufcSUmM" and value.dtype.itemsize
        return self.array(label, value) if named else None


def save(path: StrPath, content: tuple[Table | None, Mapping[str, Array], Meta, Meta], *, allow_pickle: bool) -> None:
    """Write the parts of a batch to a file; readers see the old file or the whole new one, never a part.

    Args:
        path: where to
        content: tensor columns, arrays, metadata, and other attributes of the batch
        allow_pickle: whether objects that JSON cannot hold may be pickled
    """
    entries = _Entries()
    tensors, arrays, meta, extra = content
    head = {
        "version": VERSION,
        "rows": None if tensors is None else tensors.rows,
        "tensors": {} if tensors is None else _saved_tensors(tensors, entries, allow_pickle),
        "arrays": {name: _saved_array(name, array, entries, allow_pickle) for name, array in arrays.items()},
        "meta": _saved_meta(meta, entries, allow_pickle),
        "extra": _saved_meta(extra, entries, allow_pickle),
    }
    entries.text(_HEAD, head)
    mapping.write(Path(path), entries.found, {"format": FORMAT, "version": str(VERSION)})


def _saved_tensors(tensors: Table, entries: _Entries, allow_pickle: bool) -> dict[str, Any]:
    shared, known = Shared(), dict[int, tuple[Tensor, dict[str, Any]]]()

    def saved(label: str, column: Column) -> dict[str, Any]:
        if isinstance(column, Tensor) and not column.is_nested:
            return {"kind": "dense", **entries.tensor(label, column)}
        if isinstance(column, Tensor):
            values, offsets, dim = jagged.parts(column, shared)
            if id(offsets) not in known:
                known[id(offsets)] = (offsets, entries.tensor(f"{label}.offsets", offsets))
            found = entries.tensor(f"{label}.values", values)
            return {"kind": "jagged", "dim": dim, "values": found, "offsets": known[id(offsets)][1]}
        if column_rules.is_tree(column):
            inside = {name: saved(f"{label}.{name}", leaf) for name, leaf in column.items()}
            return {"kind": "tree", "batch_size": list(column.batch_size), "leaves": inside}
        return _saved_leaf(label, column, entries, allow_pickle)

    return {name: saved(name, column) for name, column in tensors.columns.items()}


def _saved_leaf(label: str, column: Column, entries: _Entries, allow_pickle: bool) -> dict[str, Any]:
    if not (leaves.is_shared_value(column) or leaves.is_stack(column)):
        raise WireError(f"column {label!r} is a {type(column).__name__}, which a file cannot hold; use a TensorDict")
    is_value = leaves.is_shared_value(column)
    found = column.data if is_value else leaves.listed(column)
    value = _encoded(f"column {label!r}", found, label, entries, allow_pickle)
    extra = 0 if is_value else _ROW_OF_A_STACK * math.prod(column.batch_size)
    kind, at = "value" if is_value else "stack", entries.text(label, value, extra)
    return {"kind": kind, "batch_size": list(column.batch_size), "at": at}


def _encoded(where: str, value: Any, label: str, entries: _Entries, allow_pickle: bool) -> Any:
    encoder = jsonable.Encoder(lambda kept: entries.keep(label, kept), allow_pickle=allow_pickle)
    try:
        return encoder.encode(value)
    except WireError as error:
        raise WireError(f"{where}: {error}") from error.__cause__
    except RecursionError:
        raise WireError(f"{where}: the value contains itself, which a file cannot hold") from None


def _saved_array(name: str, array: Array, entries: _Entries, allow_pickle: bool) -> dict[str, Any]:
    kept = None if array.dtype == object else entries.keep(name, array)
    if kept is not None:
        return {"kind": "array", **kept}
    cells = [
        _encoded(
            f"column {name!r}, row {row // max(1, array[0].size if array.ndim > 1 else 1)}",
            cell,
            name,
            entries,
            allow_pickle,
        )
        for row, cell in enumerate(array.flat)
    ]
    return {"kind": "objects", "shape": list(array.shape), "at": entries.text(name, cells)}


def _saved_meta(meta: Meta, entries: _Entries, allow_pickle: bool) -> str:
    saved = [
        [
            _encoded("meta_info", key, "meta", entries, allow_pickle),
            _encoded(f"meta_info[{key!r}]", value, "meta", entries, allow_pickle),
        ]
        for key, value in meta.items()
    ]
    return entries.text("meta_info", saved)


class Reader:
    """An open file. Use `parts`."""

    def __init__(self, path: StrPath, *, allow_pickle: bool) -> None:
        """Open and map a file.

        Raises:
            FileFormatError: truncated, foreign, or of a newer version.
            OSError: it cannot be opened.
        """
        self._path = os.fspath(path)
        self._entries, about = mapping.entries(self._path)
        if about.get("format") != FORMAT or _HEAD not in self._entries:
            raise FileFormatError(f"{self._path} is a safetensors file that was not written by fanfold.dataproto")
        if about.get("version") != str(VERSION):
            raise FileFormatError(
                f"{self._path} has the version {about.get('version')}; this package reads {VERSION}. Upgrade."
            )
        self._decoder = jsonable.Decoder(self._value, allow_pickle=allow_pickle)
        self.offsets: dict[str, Tensor] = {}
        self._read: set[str] = set()

    def parts(self, columns: Iterable[str] | None) -> tuple[Table | None, dict[str, Array], Meta, Meta]:
        """Return the tensor columns, arrays, metadata and other attributes; with `columns`, only those are read.

        Raises:
            FileFormatError: the content is damaged, or needs allow_pickle.
            MissingKeyError: a column that the file does not have.
        """
        try:
            return self._parts(columns)
        except DataProtoError:
            raise
        except RecursionError:
            raise FileFormatError(f"{self._path} is damaged: values are nested too deeply") from None
        except Exception as error:
            raise FileFormatError(f"{self._path} is damaged: {type(error).__name__}: {error}") from error

    def _parts(self, columns: Iterable[str] | None) -> tuple[Table | None, dict[str, Array], Meta, Meta]:
        head = jsonable.loads(self._memory(_HEAD))
        wanted = None if columns is None else list(columns)
        for name in wanted or ():
            if name not in head["tensors"] and name not in head["arrays"]:
                known = sorted([*head["tensors"], *head["arrays"]])
                raise MissingKeyError(f"{self._path} has no column {name!r}; it has {known}")
        tensors = {name: self._column(spec) for name, spec in _some(head["tensors"], wanted).items()}
        arrays = {name: self._array(spec) for name, spec in _some(head["arrays"], wanted).items()}
        table = None if head["rows"] is None else _checked_table(tensors, head["rows"])
        return table, arrays, self._meta(head["meta"]), self._meta(head["extra"])

    def _memory(self, key: str) -> memoryview:
        """Return the memory of an entry, once: read again and again, a small file could become large."""
        if key in self._read:
            raise FileFormatError(f"{self._path} is damaged: two values are said to be in the entry {key!r}")
        self._read.add(key)
        return self._entries[key].memory

    def _meta(self, key: str) -> Meta:
        return dict(self._decoder.decode(self._memory(key)))

    def _tensor(self, spec: Mapping[str, Any]) -> Tensor:
        return tensor_over(self._memory(spec["at"]), dtype_named(spec["dtype"]), _shape(spec["shape"]))

    def _value(self, spec: Mapping[str, Any]) -> Any:
        if "numpy" not in spec:
            return self._tensor(spec)
        dtype, shape = jsonable.plain_dtype(spec["numpy"]), _shape(spec["shape"])
        memory = self._memory(spec["at"])
        return np.frombuffer(memory, dtype=dtype).reshape(shape) if memory.nbytes else np.empty(shape, dtype=dtype)

    def _array(self, spec: Mapping[str, Any]) -> Array:
        if spec["kind"] == "array":
            found: Array = self._value(spec)
            return found
        cells = self._decoder.decode(self._memory(spec["at"]))
        return np.fromiter(cells, dtype=object, count=len(cells)).reshape(_shape(spec["shape"]))

    def _column(self, spec: Mapping[str, Any]) -> Column:
        kind = spec["kind"]
        if kind == "dense":
            return self._tensor(spec)
        if kind == "jagged":
            return self._jagged(spec)
        if kind == "tree":
            inside = {name: self._column(leaf) for name, leaf in spec["leaves"].items()}
            return TensorDict(inside, batch_size=_shape(spec["batch_size"]))
        batch_size = _shape(spec["batch_size"])
        extra = 0 if kind == "value" else _ROW_OF_A_STACK * math.prod(batch_size)
        value = self._decoder.decode(self._memory(spec["at"]), extra)
        if kind == "value":
            return NonTensorData(value, batch_size=batch_size)
        return leaves.unlisted(value, batch_size)

    def _jagged(self, spec: Mapping[str, Any]) -> Tensor:
        at = spec["offsets"]["at"]
        if at not in self.offsets:
            self.offsets[at] = self._tensor(spec["offsets"])
        return jagged.checked(Parts(self._tensor(spec["values"]), self.offsets[at], spec["dim"]))


def _some(specs: dict[str, Any], wanted: list[str] | None) -> dict[str, Any]:
    return specs if wanted is None else {name: specs[name] for name in wanted if name in specs}


def _checked_table(tensors: dict[str, Column], rows: Any) -> Table:
    for name, column in tensors.items():
        column_rules.check(name, column)
        if column_rules.rows_of(column) != rows:
            raise FileFormatError(f"column {name!r} has {column_rules.rows_of(column)} rows; expected {rows}")
    return Table(tensors, int(rows))


def _shape(sizes: Any) -> tuple[int, ...]:
    shape = tuple(int(size) for size in sizes)
    if min(shape, default=0) < 0:
        raise FileFormatError(f"the file names the shape {list(shape)}")
    return shape
