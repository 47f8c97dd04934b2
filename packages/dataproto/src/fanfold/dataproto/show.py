"""A batch for people: one screen of text, the same as HTML, sizes, and checks against a schema. Letters: `B` rows."""

import html
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

import numpy as np
from torch import Tensor

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import jagged, objects, schema
from fanfold.dataproto.buffers import dtype_name
from fanfold.dataproto.columns import Column
from fanfold.dataproto.errors import ColumnTypeError
from fanfold.dataproto.schema import Schema
from fanfold.dataproto.state import BatchState
from fanfold.dataproto.text import short

_LINES = 24
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_HEADINGS = ("column", "kind", "dtype", "row shape", "device", "size")


class _Line(NamedTuple):
    column: str
    kind: str
    dtype: str
    shape: str
    device: str
    size: str


class Showing(BatchState):
    """What people look at."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """Bytes that the rows of this batch hold: tensors, arrays, and a lower bound for objects.

        >>> DataProto.from_dict({"x": torch.zeros(4, 2)}).nbytes
        32
        """
        tensors = sum(column_rules.nbytes(column) for column in self._columns().values())
        return tensors + sum(objects.nbytes(array) for array in self.non_tensor_batch.values())

    def schema(self) -> Schema:
        """Describe the columns and the keys of `meta_info`; see `validate`.

        >>> DataProto.from_dict({"x": torch.zeros(4, 2)}).schema().columns["x"].shape
        (2,)
        """
        return schema.schema_of(self._columns(), self.non_tensor_batch, self.meta_info)

    def validate(self, expected: Schema) -> None:
        """Check that this batch is as a schema says.

        Raises:
            SchemaError: names the first column, key or row that is not.

        >>> batch = DataProto.from_dict({"x": torch.zeros(4, 2)})
        >>> batch.validate(batch.schema())
        """
        if not isinstance(expected, Schema):
            raise ColumnTypeError(f"validate got a {type(expected).__name__}; expected a Schema")
        self._rows()
        schema.check(expected, self._columns(), self.non_tensor_batch, self.meta_info)

    def print_size(self, prefix: str = "", file: TextIO | None = None) -> None:
        """Write the number of rows and the size of both kinds of columns to standard output, or to `file`.

        >>> DataProto.from_dict({"x": torch.zeros(4, 2)}).print_size("before")
        before: 4 rows, tensors 32 B, non-tensors 0 B
        """
        tensors = sum(column_rules.nbytes(column) for column in self._columns().values())
        arrays = sum(objects.nbytes(array) for array in self.non_tensor_batch.values())
        start = f"{prefix}: " if prefix else ""
        line = f"{start}{self._row_count()} rows, tensors {size_text(tensors)}, non-tensors {size_text(arrays)}\n"
        (file or sys.stdout).write(line)

    def get_data_info(self) -> str:
        """Return every column and every key of `meta_info` with its type, one a line.

        >>> print(DataProto.from_dict({"x": torch.zeros(4, 2)}, meta_info={"step": 3}).get_data_info())
        x: tensor float32 [4, 2] cpu
        meta_info step: int
        """
        rows = self._row_count()
        columns = [f"{line.column}: {_described(line, rows)}" for line in self._lines()]
        return "\n".join([*columns, *(f"meta_info {key}: {_types(value)}" for key, value in self.meta_info.items())])

    def __repr__(self) -> str:
        lines = [_Line(*_HEADINGS), *self._lines()]
        shown, hidden = lines[:_LINES], len(lines) - _LINES
        widths = [max(len(line[at]) for line in shown) for at in range(len(_HEADINGS))]
        table = [
            "  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
            for line in shown
        ]
        more = [f"  ... and {hidden} more columns"] if hidden > 0 else []
        return "\n".join([self._title(), *(table if len(lines) > 1 else []), *more, *self._meta_lines()])

    def _repr_html_(self) -> str:
        cells = "".join(f"<th>{heading}</th>" for heading in _HEADINGS)
        rows = ["<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in line) + "</tr>" for line in self._lines()]
        meta = "".join(f"<br>{html.escape(line.strip())}" for line in self._meta_lines())
        return f"<p><b>{html.escape(self._title())}</b>{meta}</p><table><tr>{cells}</tr>{''.join(rows)}</table>"

    def _title(self) -> str:
        return f"{type(self).__name__}: {self._row_count()} rows, {size_text(self.nbytes)}"

    def _meta_lines(self) -> list[str]:
        meta = self.meta_info
        return [
            "  meta_info: " + ", ".join(f"{key}={short(value)}" for key, value in list(meta.items())[:_LINES])
        ] * bool(meta)

    def _lines(self) -> Iterator[_Line]:
        for name, column in self._columns().items():
            yield from _column_lines(name, column)
        for name, array in self.non_tensor_batch.items():
            kind = "objects" if array.dtype == object else "array"
            cells = _cell_types(array) if array.dtype == object else str(array.dtype)
            yield _Line(name, kind, cells, str(list(array.shape[1:])), "", size_text(objects.nbytes(array)))


def _column_lines(name: str, column: Column) -> Iterator[_Line]:
    if column_rules.is_tree(column):
        for leaf, value in column.items():
            yield from _column_lines(f"{name}.{leaf}", value)
        return
    size, kind = size_text(column_rules.nbytes(column)), column_rules.kind(column)
    if isinstance(column, Tensor):
        shape = "[" + ", ".join("*" if dim is None else str(dim) for dim in jagged.row_shape(column)) + "]"
        yield _Line(name, kind, dtype_name(column.dtype), shape, str(column.device), size)
    else:
        yield _Line(name, kind, "", str(list(column.batch_size[1:])), "", size)


def _described(line: _Line, rows: int) -> str:
    return " ".join(filter(None, (line.kind, line.dtype, _with_rows(rows, line.shape), line.device)))


def _with_rows(rows: int, shape: str) -> str:
    return f"[{rows}, {shape[1:]}" if shape != "[]" else f"[{rows}]"


def _cell_types(array: np.ndarray[Any, Any]) -> str:
    names = sorted({type(cell).__name__ for cell in array.flat})
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")  # noqa: PLR2004 (what fits a line)


def _types(value: object) -> str:
    if isinstance(value, dict):
        return "dict of " + (", ".join(f"{key}: {type(item).__name__}" for key, item in value.items()) or "nothing")
    if isinstance(value, list | tuple | set):
        return f"{type(value).__name__} of {', '.join(sorted({type(item).__name__ for item in value})) or 'nothing'}"
    return type(value).__name__


def size_text(size: float) -> str:
    """Return a number of bytes in words.

    >>> size_text(3 * 1024 * 1024)
    '3.0 MiB'
    """
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:  # noqa: PLR2004 (bytes in a KiB)
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
