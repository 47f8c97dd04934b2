"""Resource pools: how many processes on which nodes, as pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.worker.errors import PoolError


@dataclass(frozen=True)
class Slot:
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
    """

    def __init__(self, process_on_nodes: Sequence[int] | None = None, max_colocate_count: int = 10) -> None:
        self._process_on_nodes = [_count(item, f"process_on_nodes[{i}]") for i, item in enumerate(process_on_nodes or ())]
        self.max_colocate_count = _count(max_colocate_count, "max_colocate_count")

    def add_node(self, process_count: int) -> None:
        """Append a node with that many processes, in place."""
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._process_on_nodes})"


def as_pool(pool: ResourcePool | Sequence[int]) -> ResourcePool:
    """Take a list of processes per node wherever a pool is wanted."""
    if isinstance(pool, ResourcePool):
        return pool
    if isinstance(pool, (str, bytes)) or not isinstance(pool, Sequence):
        raise PoolError(f"a pool is a ResourcePool or a list of processes per node such as [2, 2]; got {pool!r}")
    return ResourcePool(pool)


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 1:
        raise PoolError(f"{where} must be a whole number of at least 1; got {value!r}")
    return int(value.__index__())
