"""Putting batches below each other. Letters: `B` rows."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import merge, objects
from fanfold.dataproto.errors import ColumnTypeError, MergeError
from fanfold.dataproto.jagged import Shared
from fanfold.dataproto.merge import Rule
from fanfold.dataproto.meta import copy_meta_deep
from fanfold.dataproto.objects import Array
from fanfold.dataproto.rows import targets_of
from fanfold.dataproto.state import BatchState
from fanfold.dataproto.table import Table

S = TypeVar("S", bound=BatchState)


def concat(data: Sequence[S], rules: Mapping[str, Rule] | None, out: S | None) -> S:
    """Put batches below each other; see `DataProto.concat`."""
    parts = _checked(data)
    tables = [part._tensors() for part in parts]
    carried = merge.united_rules(*(part._merge for part in parts), {})
    all_rules = {**carried, **merge.united_rules(rules or {})}
    meta = copy_meta_deep(merge.merged_meta([part.meta_info for part in parts], all_rules))
    arrays = _concat_arrays(parts)
    made = parts[0]._derive(_concat_tables(tables, out), arrays, meta)
    made._merge = carried  # rules of this call are no property of what it made
    return made


def _checked(data: Sequence[S]) -> list[S]:
    parts = list(data)
    if not parts:
        raise MergeError("concat got no batches; expected at least one, because only a batch knows the columns")
    for position, part in enumerate(parts):
        if not isinstance(part, BatchState):
            raise ColumnTypeError(f"concat: part {position} is a {type(part).__name__}; expected a DataProto")
        part._rows()
    return parts


def _concat_tables(tables: list[Table | None], out: BatchState | None) -> Table | None:
    names = _same_names("tensor", [{} if table is None else table.columns for table in tables])
    found = [table for table in tables if table is not None]
    if not found or len(found) < len(tables):
        return (
            None  # where one part has no tensor columns at all, none has, and other columns say how many rows there are
        )
    rows, shared = sum(table.rows for table in found), Shared()
    targets = targets_of(out, found[0], rows)
    made = {
        name: column_rules.cat(name, [table.columns[name] for table in found], shared, targets.get(name))
        for name in names
    }
    return Table(made, rows, found[0].device)


def _concat_arrays(parts: Sequence[BatchState]) -> dict[str, Array]:
    names = _same_names("non-tensor", [part.non_tensor_batch for part in parts])
    return {name: objects.cat(name, [part.non_tensor_batch[name] for part in parts]) for name in names}


def _same_names(kind: str, parts: Sequence[Any]) -> list[str]:
    for position, part in enumerate(parts):
        lacking, added = parts[0].keys() - part.keys(), part.keys() - parts[0].keys()
        if lacking or added:
            raise MergeError(
                f"concat: part {position} lacks the {kind} columns {sorted(lacking)} and adds {sorted(added)} to those "
                "of part 0; expected the same columns in every part"
            )
    return list(parts[0])
