"""Pools out of pools: split, merged, taken from pools that exist; and several pools with the roles in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from fanfold.ray.cluster import node_states, require_cluster
from fanfold.ray.errors import PlacementError
from fanfold.ray.feasibility import is_hopeless, need_of, shortage_table
from fanfold.ray.placement import RayResourcePool
from fanfold.worker import PoolError

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

_SHARED = (
    "use_gpu",
    "max_colocate_count",
    "detached",
    "accelerator_type",
    "cpus_per_process",
    "resources_per_process",
    "label_selector",
    "placement_timeout",
    "join_wait",
)


class SubRayResourcePool(RayResourcePool):
    """Some consecutive bundles of placement groups that belong to another pool; closing it only lets go.

    Args:
        placement_groups: Those of the other pool, in its order.
        start_bundle_index: The first bundle, counted over all of them.
        subgroup_world_size: How many bundles.
        name_prefix: Name of the part, for people.
        attributes: What else a `RayResourcePool` takes; should be that of the other pool.

    Raises:
        PoolError: There are no such bundles.
    """

    def __init__(
        self,
        placement_groups: Sequence[PlacementGroup],
        start_bundle_index: int,
        subgroup_world_size: int,
        *,
        name_prefix: str | None = None,
        **attributes: Any,
    ) -> None:
        total = sum(group.bundle_count for group in placement_groups)
        if subgroup_world_size < 1 or not 0 <= start_bundle_index <= total - subgroup_world_size:
            raise PoolError(
                f"there are {total} bundles; a part has at least one of them and cannot be bundles "
                f"{start_bundle_index} to {start_bundle_index + subgroup_world_size - 1}"
            )
        counts = _counts(placement_groups, start_bundle_index, subgroup_world_size)
        super().__init__(counts, name_prefix=name_prefix, **attributes)
        self.start_bundle_index = int(start_bundle_index)
        self.subgroup_world_size = int(subgroup_world_size)
        self._groups = list(placement_groups)

    def _part_of(self, where: list[tuple[PlacementGroup, int, str]]) -> list[tuple[PlacementGroup, int, str]]:
        return where[self.start_bundle_index : self.start_bundle_index + self.subgroup_world_size]

    def close(self) -> None:
        """Let go of the bundles; they belong to the pool of which this is a part."""


def split_resource_pool(pool: RayResourcePool, split_size: int | Sequence[int]) -> list[SubRayResourcePool]:
    """Cut a pool into parts of consecutive ranks; the pool is placed if it is not.

    Args:
        pool: The pool, or a part of one.
        split_size: The size of every part, which divides the pool's, or the size of each, which sum to it.

    Raises:
        PoolError: The sizes do not come out even, or one is less than 1.
    """
    sizes = _sizes(pool.world_size, split_size)
    groups, first = pool.pgs, getattr(pool, "start_bundle_index", 0)
    name = pool.name_prefix or ""
    return [
        SubRayResourcePool(
            groups, first + sum(sizes[:part]), size, name_prefix=f"{name}_split_{part}", **_attributes(pool)
        )
        for part, size in enumerate(sizes)
    ]


def merge_resource_pool(first: RayResourcePool, second: RayResourcePool) -> RayResourcePool:
    """Join two pools into one, the ranks of the first before those of the second; both are placed if they are not.

    The result does not own the placement groups: closing it only lets go.

    Raises:
        PoolError: They differ in more than their size, or one is a part of a pool.
    """
    if isinstance(first, SubRayResourcePool) or isinstance(second, SubRayResourcePool):
        raise PoolError("parts of pools cannot be merged; merge the pools, then split")
    differ = [f"{name}: {mine!r} and {theirs!r}" for name, mine, theirs in _compared(first, second) if mine != theirs]
    if differ:
        raise PoolError(f"{first!r} and {second!r} cannot be merged, they differ in {'; '.join(differ)}")
    groups = [*first.pgs, *second.pgs]
    name = f"{first.name_prefix or ''}_{second.name_prefix or ''}"
    bundles = sum(group.bundle_count for group in groups)
    return SubRayResourcePool(groups, 0, bundles, name_prefix=name, **_attributes(first))


def extract_pg_from_exist(
    resource_pools: Mapping[str, RayResourcePool], src_role_names: Sequence[str], resource_pool: RayResourcePool
) -> list[PlacementGroup]:
    """Find placement groups of existing pools that have room for each entry of a pool; the largest go to the largest.

    Returns:
        One placement group for each entry of `resource_pool`, in its order.

    Raises:
        PoolError: There is no such pool, or they have no placement group large enough.
    """
    unknown = sorted(set(src_role_names) - resource_pools.keys())
    if unknown:
        raise PoolError(f"there is no pool {', '.join(unknown)}; there are {', '.join(resource_pools)}")
    sources = [group for name in src_role_names for group in resource_pools[name].pgs]
    largest = sorted(sources, key=lambda group: group.bundle_count, reverse=True)
    wanted = sorted(enumerate(resource_pool.store), key=lambda entry: entry[1], reverse=True)
    found = {
        position: group
        for (position, count), group in zip(wanted, largest, strict=False)
        if group.bundle_count >= count
    }
    if len(found) < len(wanted):
        sizes = [group.bundle_count for group in largest]
        raise PoolError(
            f"{resource_pool!r} does not fit placement groups of {sizes} bundles, those of {list(src_role_names)}"
        )
    return [found[position] for position in range(len(wanted))]


@dataclass
class ResourcePoolManager:
    """Pools by name, and which role lives in which of them.

    Attributes:
        resource_pool_spec: By pool, its processes per node.
        mapping: By role, its pool.
        resource_pool_dict: By pool, the pool itself, once made.
        max_colocate_count: How many groups may share each pool.
        use_gpu: Whether each process has a GPU; None: if the cluster has any.
        cpus_per_process: CPUs of each process.
        detached: Whether the pools outlive this driver.
    """

    resource_pool_spec: Mapping[str, Sequence[int]]
    mapping: Mapping[Any, str]
    resource_pool_dict: dict[str, RayResourcePool] = field(default_factory=dict)
    _: KW_ONLY
    max_colocate_count: int = 3
    use_gpu: bool | None = None
    cpus_per_process: float = 1.0
    detached: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(set(self.mapping.values()) - self.resource_pool_spec.keys())
        if unknown:
            raise PoolError(f"roles are mapped to {', '.join(unknown)}; there are {', '.join(self.resource_pool_spec)}")

    def create_resource_pool(self) -> None:
        """Make the pools and check that all of them fit the cluster together.

        Raises:
            PlacementError: They do not.
        """
        self.resource_pool_dict = {name: self._pool(name, counts) for name, counts in self.resource_pool_spec.items()}
        self.check_resource_available()

    def _pool(self, name: str, counts: Sequence[int]) -> RayResourcePool:
        return RayResourcePool(
            list(counts),
            use_gpu=self.use_gpu,
            name_prefix=name,
            max_colocate_count=self.max_colocate_count,
            detached=self.detached,
            cpus_per_process=self.cpus_per_process,
        )

    def check_resource_available(self) -> None:
        """Check that all pools fit the cluster together, if nothing else were there.

        Raises:
            PlacementError: They do not; the table says what is asked and what there is.
        """
        require_cluster("checking pools")
        pools = self.resource_pool_dict.values()
        needs = [need_of(pool.bundle(), count) for pool in pools for count in pool.store]
        nodes = node_states()
        if needs and is_hopeless(needs, nodes):
            asked = {name: list(counts) for name, counts in self.resource_pool_spec.items()}
            raise PlacementError(f"this cluster can never place {asked} together.\n{shortage_table(needs, nodes)}")

    def get_resource_pool(self, role: Any) -> RayResourcePool:
        """Return the pool of a role.

        Raises:
            PoolError: There is no such role, or the pools are not made yet.
        """
        if role not in self.mapping:
            raise PoolError(f"there is no role {role!r}; the roles are {', '.join(map(repr, self.mapping))}")
        if self.mapping[role] not in self.resource_pool_dict:
            raise PoolError(f"the pool of role {role!r} is not made yet; call create_resource_pool() first")
        return self.resource_pool_dict[self.mapping[role]]

    def get_n_gpus(self) -> int:
        """Return how many processes, each with a GPU where there are any, all pools have together."""
        return sum(sum(counts) for counts in self.resource_pool_spec.values())

    def close(self) -> None:
        """Close all pools; closing twice is fine."""
        for pool in self.resource_pool_dict.values():
            pool.close()


def _attributes(pool: RayResourcePool) -> dict[str, Any]:
    return {name: getattr(pool, name) for name in _SHARED}


def _compared(first: RayResourcePool, second: RayResourcePool) -> list[tuple[str, Any, Any]]:
    return [(name, getattr(first, name), getattr(second, name)) for name in _SHARED]


def _sizes(total: int, split_size: int | Sequence[int]) -> list[int]:
    if isinstance(split_size, Sequence):
        sizes = [int(size) for size in split_size]
        if sum(sizes) != total or any(size < 1 for size in sizes):
            raise PoolError(
                f"a pool of {total} processes cannot be split into {sizes}: parts of at least 1 that sum to {total}"
            )
        return sizes
    if split_size < 1 or total % split_size:
        raise PoolError(f"a pool of {total} processes cannot be split into parts of {split_size}; give a list of sizes")
    return [int(split_size)] * (total // split_size)


def _counts(groups: Sequence[PlacementGroup], first: int, size: int) -> list[int]:
    counts, seen = [], 0
    for group in groups:
        inside = min(first + size, seen + group.bundle_count) - max(first, seen)
        counts += [inside] if inside > 0 else []
        seen += group.bundle_count
    return counts
