"""Which columns: select, pop, rename, union, and the move to a device. Letters: `B` rows."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import torch

from fanfold.dataproto import columns as column_rules
from fanfold.dataproto import merge
from fanfold.dataproto.errors import ColumnError, ColumnTypeError, MergeError, MissingKeyError
from fanfold.dataproto.jagged import Shared
from fanfold.dataproto.state import BatchState
from fanfold.dataproto.table import Table

V = TypeVar("V")
Names = Iterable[str] | str | None


class Picking(BatchState):
    """Operations on whole columns."""

    __slots__ = ()

    @property
    def columns(self) -> list[str]:
        """The names of the columns: those of tensors, then the others.

        >>> DataProto.from_dict({"x": torch.zeros(2)}, {"s": ["a", "b"]}).columns
        ['x', 's']
        """
        self._rows()
        return [*self._columns(), *self.non_tensor_batch]

    def select(
        self,
        batch_keys: Names = None,
        non_tensor_batch_keys: Names = None,
        meta_info_keys: Names = None,
        deepcopy: bool = False,
    ) -> Self:
        """Return a batch with some of the columns; None keeps all of a part.

        Tensors are shared with this batch unless `deepcopy` is set.

        Args:
            batch_keys: names of tensor columns; one name may be given as a string
            non_tensor_batch_keys: names of non-tensor columns
            meta_info_keys: keys of the metadata
            deepcopy: copy tensors, arrays, objects and metadata

        Raises:
            MissingKeyError: a name that the part does not have.

        >>> batch = DataProto.from_dict({"x": torch.zeros(2), "y": torch.ones(2)}, {"s": ["a", "b"]})
        >>> picked = batch.select(batch_keys=["y"], non_tensor_batch_keys=[])
        >>> list(picked.batch.keys()), picked.non_tensor_batch
        (['y'], {})
        """
        self._rows()
        found = self._tensors()
        columns = _chosen("batch_keys", batch_keys, {} if found is None else found.columns)
        arrays = _chosen("non_tensor_batch_keys", non_tensor_batch_keys, self.non_tensor_batch)
        meta = _chosen("meta_info_keys", meta_info_keys, self._meta_for_view())
        tensors = None if found is None else Table(columns, found.rows, found.device, found.mapped & columns.keys())
        if deepcopy:
            return self._derive(_cloned(tensors), copy.deepcopy(arrays), copy.deepcopy(meta))
        return self._derive(tensors, arrays, meta)

    def pop(self, batch_keys: Names = None, non_tensor_batch_keys: Names = None, meta_info_keys: Names = None) -> Self:
        """Remove columns and keys in place and return them as a batch; None takes nothing of a part.

        Raises:
            MissingKeyError: a name that the part does not have; then nothing was removed.

        >>> batch = DataProto.from_dict({"x": torch.zeros(2), "y": torch.ones(2)})
        >>> batch.pop(["y"])["y"], list(batch.batch.keys())
        (tensor([1., 1.]), ['x'])
        """
        self._rows()
        found = self._tensors()
        columns = {} if found is None else dict(found.columns)
        taken = _chosen("batch_keys", batch_keys or (), columns)
        arrays = _chosen("non_tensor_batch_keys", non_tensor_batch_keys or (), self.non_tensor_batch)
        meta = _chosen("meta_info_keys", meta_info_keys or (), self.meta_info)
        tensors = None if found is None else Table(taken, found.rows, found.device, found.mapped & taken.keys())
        popped = self._derive(tensors, arrays, meta)
        if found is not None and taken:
            rest = _without(columns, taken)
            self._set_table(Table(rest, found.rows, found.device, found.mapped & rest.keys()))
        self.non_tensor_batch = _without(self.non_tensor_batch, arrays)
        self.meta_info = _without(self.meta_info, meta)
        return popped

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> Self:
        """Rename columns of both kinds in place and return this batch.

        Raises:
            ColumnTypeError: neither a name nor a list of names.
            ColumnError: as many old as new names are expected, and each new name once.
            MissingKeyError: an old name is no column; then nothing was renamed.

        >>> batch = DataProto.from_dict({"x": torch.zeros(2)}, {"s": ["a", "b"]}).rename(["x", "s"], ["y", "t"])
        >>> list(batch.batch.keys()), list(batch.non_tensor_batch)
        (['y'], ['t'])
        """
        old, new = _names("old_keys", old_keys), _names("new_keys", new_keys)
        if len(old) != len(new):
            raise ColumnError(f"rename got {len(old)} old names {old} and {len(new)} new names {new}; expected as many")
        self._rows()
        found = self._tensors()
        columns = {} if found is None else found.columns
        change = dict(zip(old, new, strict=True))
        _check_rename(change, len(old), [*columns, *self.non_tensor_batch])
        if found is not None and change.keys() & columns.keys():
            mapped = frozenset(change.get(name, name) for name in found.mapped)
            self._set_table(Table(_renamed(columns, change), found.rows, found.device, mapped))
        self.non_tensor_batch = _renamed(self.non_tensor_batch, change)
        return self

    def union(self, other: Self) -> Self:
        """Add the columns and metadata of another batch in place and return this batch.

        A name that both have must hold equal values (NaN equals NaN; arrays and tensors are compared by content).
        Metadata that differs follows the merge rules; without a rule it is a conflict. When this raises, neither batch
        has changed. The tensors of `other` are shared, not copied.

        Raises:
            MergeError: another number of rows, or a name with two different values; names it and shows both.

        >>> batch = DataProto.from_dict({"x": torch.zeros(2)})
        >>> sorted(batch.union(DataProto.from_dict({"y": torch.ones(2)})).batch.keys())
        ['x', 'y']
        """
        if not isinstance(other, BatchState):
            raise ColumnTypeError(
                f"union got a {type(other).__name__}; expected a DataProto: what a future's get() returns, or what "
                "DataProto.from_parts_of makes of a batch of another class"
            )
        mine, theirs = self._rows(), other._rows()
        if self._has_columns() and other._has_columns() and mine != theirs:
            raise MergeError(f"union of batches with {mine} and {theirs} rows; expected as many. Select rows first.")
        tensors = merge.united_tables(self._tensors(), other._tensors())
        arrays = merge.united_arrays(self.non_tensor_batch, other.non_tensor_batch)
        merge.refuse_two_kinds(tensors, arrays)
        rules = merge.united_rules(self._merge, other._merge)
        meta = merge.united_meta(self.meta_info, other._meta_for_view(), rules)
        if (tensors is not None and tensors.columns.keys() != self._columns().keys()) or (
            tensors is not None and self._tensors() is None
        ):
            self._set_table(tensors)
        self.non_tensor_batch, self.meta_info, self._merge = arrays, meta, rules
        return self

    def __or__(self, other: Self) -> Self:
        """Return a batch with the columns and metadata of both, as `union` unites them; neither of the two changes.

        Tensors are shared, not copied.

        Raises:
            MergeError: another number of rows, or a name with two different values; names it and shows both.

        >>> x, y = DataProto.from_dict({"x": torch.zeros(2)}), DataProto.from_dict({"y": torch.ones(2)})
        >>> (x | y).columns, x.columns, y.columns
        (['x', 'y'], ['x'], ['y'])
        """
        return self.select().union(other)

    def to(self, device: str | int | torch.device, *, non_blocking: bool = False) -> Self:
        """Move the tensor columns to a device in place and return this batch; arrays and metadata stay.

        >>> DataProto.from_dict({"x": torch.zeros(2)}).to("cpu").batch.device
        device(type='cpu')
        """
        target = _device(device)
        found = self._tensors()
        if found is None:
            return self
        shared = Shared()
        moved = {
            name: column_rules.to_device(column, target, shared, non_blocking=non_blocking)
            for name, column in found.columns.items()
        }
        still = frozenset(name for name in found.mapped if moved[name] is found.columns[name] or target.type == "cpu")
        self._set_table(Table(moved, found.rows, target, still))
        return self

    def clone(self) -> Self:
        """Return a batch with tensors, arrays and metadata of its own; cells of object columns are shared.

        >>> batch = DataProto.from_dict({"x": torch.zeros(2)})
        >>> _ = batch.clone().batch["x"].add_(1)
        >>> batch["x"]
        tensor([0., 0.])
        """
        arrays = {name: array.copy() for name, array in self.non_tensor_batch.items()}
        return self._derive(_cloned(self._tensors()), arrays, self._meta_for_copy())

    def readonly(self) -> Self:
        """Return a view whose `.batch` is not copied out of received memory: the caller promises not to write to it.

        Writing to such a tensor may end the process. Arrays of object columns are not affected.

        >>> DataProto.from_dict({"x": torch.zeros(2)}).readonly().batch["x"]
        tensor([0., 0.])
        """
        found = self._tensors()
        tensors = None if found is None else found.trusted()
        return self._derive(tensors, dict(self.non_tensor_batch), self._meta_for_view())

    def __copy__(self) -> Self:
        return self.select()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = self._derive(
            _cloned(self._tensors()), copy.deepcopy(self.non_tensor_batch, memo), copy.deepcopy(self.meta_info, memo)
        )
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def _has_columns(self) -> bool:
        return self._tensors() is not None or bool(self.non_tensor_batch)

    def _set_table(self, tensors: Table) -> None:
        self._td, self._table = None, tensors


def _cloned(tensors: Table | None) -> Table | None:
    if tensors is None:
        return None
    shared = Shared()
    return tensors.copies(tensors.rows, lambda column: column_rules.clone(column, shared))


def _names(argument: str, names: Any) -> list[str]:
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, Iterable) or isinstance(found, bytes | Mapping):
        raise ColumnTypeError(f"{argument} is {names!r}; expected a name or a list of names")
    listed = list(found)
    wrong = next((name for name in listed if not isinstance(name, str)), None)
    if wrong is not None:
        raise ColumnTypeError(f"{argument} has the entry {wrong!r}; expected names (str)")
    return listed


def _chosen(argument: str, names: Names, part: Mapping[str, V]) -> dict[str, V]:
    if names is None:
        return dict(part)
    chosen = {}
    for name in _names(argument, names):
        if name not in part:
            raise MissingKeyError(f"{argument}: there is no {name!r}; there are {sorted(part)}")
        chosen[name] = part[name]
    return chosen


def _without(part: Mapping[str, V], names: Mapping[str, Any]) -> dict[str, V]:
    return {name: value for name, value in part.items() if name not in names}


def _renamed(part: Mapping[str, V], change: Mapping[str, str]) -> dict[str, V]:
    return {change.get(name, name): value for name, value in part.items()}


def _check_rename(change: Mapping[str, str], asked: int, existing: list[str]) -> None:
    if len(change) != asked:
        raise ColumnError(f"rename got an old name twice: {list(change)}")
    for name in change:
        if name not in existing:
            raise MissingKeyError(f"rename: there is no column {name!r}; there are {sorted(existing)}")
    after = [change.get(name, name) for name in existing]
    twice = next((name for name in after if after.count(name) > 1), None)
    if twice is not None:
        raise ColumnError(f"rename would make two columns named {twice!r}; expected each name once")


def _device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ColumnTypeError(f"to({device!r}): expected a device such as 'cpu' or 'cuda:0' ({error})") from None
