# ruff: noqa: SLF001  # parts and wholes are of one class
"""Resource pools: how many processes on which nodes, as pure arithmetic."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from fanfold.worker.errors import PoolError
from fanfold.worker.typos import refuses_typos


class Slot(NamedTuple):
    """The place of one rank.

    Attributes:
        rank: Number in the whole pool, from 0.
        node_rank: Which node of the pool, from 0.
        local_rank: Number among the pool's ranks on that node, from 0.
        local_world_size: How many ranks the pool has on that node.
    """

    rank: int
    node_rank: int
    local_rank: int
    local_world_size: int


def slots_of(process_on_nodes: Sequence[int]) -> tuple[Slot, ...]:
    """Number the ranks node by node, so that consecutive ranks share a node; nodes may be uneven."""
    places = [(node, local, count) for node, count in enumerate(process_on_nodes) for local in range(count)]
    return tuple(Slot(rank, *place) for rank, place in enumerate(places))


class ResourcePool:
    """How many processes run on each node.

    Args:
        process_on_nodes: Processes per node, one entry a node; entries may differ, each is at least 1.
        max_colocate_count: How many groups may share one slot, at least 1.

    Raises:
        PoolError: A count is not a positive whole number.
        UnknownOptionError: An option that does not exist.
    """

    @refuses_typos
    def __init__(self, process_on_nodes: Sequence[int] | None = None, max_colocate_count: int = 10) -> None:
        counts = () if process_on_nodes is None else _list_of_counts(process_on_nodes)
        self._process_on_nodes = [_count(item, f"process_on_nodes[{i}]") for i, item in enumerate(counts)]
        self.max_colocate_count = _count(max_colocate_count, "max_colocate_count")
        self._parent: ResourcePool | None = None
        self._parent_ranks: tuple[int, ...] = ()

    def add_node(self, process_count: int) -> None:
        """Append a node with that many processes, in place.

        Raises:
            PoolError: The count is not a positive whole number, or this pool is a part of another.
        """
        if self._parent is not None:
            raise PoolError(f"{self!r} is a part of {self._parent!r}; nodes are added to the whole")
        self._process_on_nodes.append(_count(process_count, "process_count"))

    @property
    def world_size(self) -> int:
        """Processes on all nodes together."""
        return sum(self._process_on_nodes)

    @property
    def store(self) -> list[int]:
        """Processes per node, as a new list."""
        return list(self._process_on_nodes)

    def __call__(self) -> list[int]:
        """Processes per node, as a new list."""
        return self.store

    def slots(self) -> tuple[Slot, ...]:
        """The place of each rank, in rank order."""
        return slots_of(self._process_on_nodes)

    def local_world_size_list(self) -> list[int]:
        """For each rank, the number of ranks on its node."""
        return [slot.local_world_size for slot in self.slots()]

    def local_rank_list(self) -> list[int]:
        """For each rank, its number on its node."""
        return [slot.local_rank for slot in self.slots()]

    @property
    def root(self) -> ResourcePool:
        """The pool that this one is a part of, however often it was split; a pool that is no part is its own root."""
        return self if self._parent is None else self._parent.root

    def root_ranks(self) -> tuple[int, ...]:
        """For each rank of this pool, its number in `root`."""
        if self._parent is None:
            return tuple(range(self.world_size))
        whole = self._parent.root_ranks()
        return tuple(whole[rank] for rank in self._parent_ranks)

    def split(self, parts: int | Sequence[int]) -> list[ResourcePool]:
        """Divide the pool into consecutive parts; each keeps every attribute and knows where it lies in the whole.

        Args:
            parts: How many equal parts, or the size of each.

        Raises:
            PoolError: The pool cannot be divided like that.
        """
        sizes = part_sizes(self.world_size, parts)
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        return [self._part(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]

    def merge(self, other: ResourcePool) -> ResourcePool:
        """Join two pools: two parts of one pool to a larger part of it, in its order; else the nodes of both.

        Raises:
            PoolError: They overlap, or an attribute differs.
        """
        self._check_alike(other)
        if self.root is other.root:
            return self._joined_parts(other)
        joined = copy.copy(self)
        joined._process_on_nodes = self.store + other.store
        joined._parent, joined._parent_ranks = None, ()
        return joined

    def _joined_parts(self, other: ResourcePool) -> ResourcePool:
        shared = sorted(set(self.root_ranks()) & set(other.root_ranks()))
        if shared:
            raise PoolError(f"{self!r} and {other!r} are parts of one pool and both have its ranks {shared}")
        return self.root._part(sorted((*self.root_ranks(), *other.root_ranks())))

    def _part(self, ranks: Sequence[int]) -> ResourcePool:
        slots = self.slots()
        part = copy.copy(self)
        per_node = Counter(slots[rank].node_rank for rank in ranks)
        part._process_on_nodes = [per_node[node] for node in sorted(per_node)]
        part._parent, part._parent_ranks = self, tuple(ranks)
        return part

    def _check_alike(self, other: ResourcePool) -> None:
        if type(self) is not type(other):
            raise PoolError(f"{self!r} and {other!r} are pools of different kinds and cannot be joined")
        theirs = other._attributes()
        for name, mine in self._attributes().items():
            if theirs.get(name) != mine:
                raise PoolError(
                    f"{self!r} has {name}={mine!r} and {other!r} has {theirs.get(name)!r}; joined pools need the same"
                )

    def _attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._process_on_nodes})"


def part_sizes(whole: int, parts: int | Sequence[int]) -> list[int]:
    """Return the size of each part of a pool.

    Raises:
        PoolError: Parts do not divide the whole, or their sizes do not add up to it.
    """
    if isinstance(parts, int):
        number = _count(parts, "the number of parts")
        if whole % number:
            raise PoolError(
                f"a pool of {whole} processes cannot be split into {number} equal parts; give their sizes, such as "
                f"[{whole - 1}, 1]"
            )
        return [whole // number] * number
    sizes = [_count(size, f"the size of part {index}") for index, size in enumerate(_list_of_counts(parts))]
    if sum(sizes) != whole:
        raise PoolError(f"parts {sizes} have {sum(sizes)} processes together; the pool has {whole}")
    return sizes


def as_pool(pool: ResourcePool | Sequence[int]) -> ResourcePool:
    """Take a list of processes per node wherever a pool is wanted."""
    return pool if isinstance(pool, ResourcePool) else ResourcePool(_list_of_counts(pool))


def _list_of_counts(counts: Any) -> Sequence[int]:
    if isinstance(counts, (str, bytes)) or not isinstance(counts, Sequence):
        raise PoolError(f"a pool is a ResourcePool or a list of processes per node such as [2, 2]; got {counts!r}")
    return counts


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 1:
        raise PoolError(f"{where} must be a whole number of at least 1; got {value!r}")
    return int(value.__index__())
