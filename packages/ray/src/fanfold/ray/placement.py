"""Resource pools on a cluster: the placement groups behind a pool, the order of nodes, and where each rank sits."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from fanfold.ray.addresses import AddressKey, address_sort_key
from fanfold.ray.bundles import SEATS, BundlePlace
from fanfold.ray.cluster import cluster_has, node_addresses, require_cluster
from fanfold.ray.placing import PlacementOrder, place, remove
from fanfold.worker import Deadline, PoolError, ResourcePool, Slot

from ray.util import placement_group_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ray.util.placement_group import PlacementGroup

PLACEMENT_LIMIT = 60.0  # seconds until a pool is placed: a busy cluster may free something, a full one will not

_SMALLEST_SHARE = 1e-4  # Ray counts resources in ten-thousandths
_ACCELERATOR_PREFIX = "accelerator_type:"


class RayResourcePool(ResourcePool):
    """Processes on the nodes of a cluster; each has a bundle of its own, and several groups may share the bundles.

    The placement groups are made when they are first needed, one for each entry of `process_on_nodes`, each on one
    node, on a node of its own as far as there are enough. Consecutive ranks share a node, and nodes are in the order of
    their numeric addresses among entries of one size.

    Args:
        process_on_nodes: Processes per node, one entry a node.
        use_gpu: Whether each process has a GPU; None: if the cluster has any.
        name_prefix: First part of the placement groups' names; unique unless given.
        max_colocate_count: How many groups may share the pool. Each worker takes that fraction of its bundle.
        detached: Whether the placement groups outlive this driver; groups in it have to be detached too.
        accelerator_type: A kind of accelerator, as Ray names them ("H100"), or a custom resource that nodes have.
        cpus_per_process: CPUs in each bundle; fractions are fine.
        resources_per_process: Custom resources in each bundle, as other accelerators are: `{"NPU": 1}`.
        label_selector: Labels that the nodes have to have, as Ray writes them: `{"market-type": "!spot"}`.
        placement_timeout: Seconds to wait for room that others hold.
        join_wait: Seconds to wait for nodes that still join, where the cluster as it is can never place the pool.

    Raises:
        PoolError: An argument makes no sense, or GPUs are wanted and the cluster has none.
        PlacementError: There is no room (from the first use on, not from the constructor).
    """

    def __init__(  # noqa: PLR0913, PLR0917  # names and order that users know
        self,
        process_on_nodes: Sequence[int] | None = None,
        use_gpu: bool | None = None,
        name_prefix: str | None = None,
        max_colocate_count: int = 10,
        detached: bool = False,
        accelerator_type: str | None = None,
        cpus_per_process: float = 1.0,
        *,
        resources_per_process: Mapping[str, float] | None = None,
        label_selector: Mapping[str, str] | None = None,
        placement_timeout: float = PLACEMENT_LIMIT,
        join_wait: float = 0.0,
    ) -> None:
        super().__init__(process_on_nodes, max_colocate_count)
        self.use_gpu = use_gpu
        self.name_prefix = name_prefix
        self.detached = detached
        self.accelerator_type = accelerator_type
        self.cpus_per_process = float(cpus_per_process)
        self.resources_per_process = dict(resources_per_process or {})
        self.label_selector = dict(label_selector or {})
        self.placement_timeout = placement_timeout
        self.join_wait = join_wait
        self._check_cpus()
        self._strategy = "STRICT_PACK"
        self._groups: list[PlacementGroup] | None = None

    def _check_cpus(self) -> None:
        if not self.cpus_per_process >= _SMALLEST_SHARE * self.max_colocate_count:
            raise PoolError(
                f"cpus_per_process={self.cpus_per_process:g} cannot be shared by max_colocate_count="
                f"{self.max_colocate_count} groups: Ray counts CPUs in steps of {_SMALLEST_SHARE:g}"
            )

    def add_node(self, process_count: int) -> None:
        """Append a node with that many processes, in place, as long as the pool is not placed."""
        if self._groups is not None:
            raise PoolError(f"{self!r} is placed on the cluster already; make another pool and merge them")
        super().add_node(process_count)

    def wants_gpu(self) -> bool:
        """Say whether each process has a GPU, asking the cluster where `use_gpu` is None.

        Raises:
            PoolError: GPUs are wanted and no node has any.
        """
        if self.use_gpu is False:
            return False
        has = cluster_has("GPU")
        if self.use_gpu and not has:
            raise PoolError(
                f"{self!r} has use_gpu=True, and no node of this cluster has a GPU that Ray knows of; "
                "say use_gpu=None (a GPU where there are any) or use_gpu=False, or start Ray with --num-gpus"
            )
        return has

    def bundle(self) -> dict[str, float]:
        """Return what is set aside for each process."""
        resources = {"CPU": self.cpus_per_process, **self.resources_per_process}
        if self.wants_gpu():
            resources["GPU"] = 1.0
        if self.accelerator_type:
            resources[_accelerator_resource(self.accelerator_type)] = _SMALLEST_SHARE
        return resources

    def share(self) -> dict[str, Any]:
        """Return what one worker takes of its bundle, as the options of an actor."""
        parts = {name: _part(amount, self.max_colocate_count) for name, amount in self.bundle().items()}
        custom = {name: parts[name] for name in self.resources_per_process}
        return {
            "num_cpus": parts["CPU"],
            "num_gpus": parts.get("GPU", 0.0),
            **({"resources": custom} if custom else {}),
        }

    def get_placement_groups(self, strategy: str = "STRICT_PACK", name: str | None = None) -> list[PlacementGroup]:
        """Return the placement groups in the order of ranks, making them at the first call.

        Args:
            strategy: Ray's placement strategy; only "STRICT_PACK" keeps an entry on one node.
            name: Name of the placement groups, where the pool has no `name_prefix` of its own.

        Raises:
            NoClusterError: This process is not connected to a cluster.
            PlacementError: There is no room; the error shows what was asked, what there is, and who holds it.
            PoolError: The pool is placed by another strategy, or has no processes.
        """
        if self._groups is None:
            self._groups = self._place(strategy, name)
            self._strategy = strategy
        elif strategy != self._strategy:
            raise PoolError(f"{self!r} is placed by {self._strategy}; it cannot be placed by {strategy} as well")
        return list(self._groups)

    @property
    def pgs(self) -> list[PlacementGroup]:
        """The placement groups in the order of ranks; made if they are not."""
        return self.get_placement_groups(self._strategy)

    @property
    def is_placed(self) -> bool:
        """Whether the placement groups are made."""
        return self._groups is not None

    def _place(self, strategy: str, name: str | None) -> list[PlacementGroup]:
        require_cluster("placing a resource pool")
        counts = self.store
        if not counts:
            raise PoolError(f"{self!r} has no processes to place")
        base = self._base_name(name)
        order = PlacementOrder(
            names=[f"{base}:{index}" for index in range(len(counts))],
            counts=counts,
            bundle=self.bundle(),
            strategy=strategy,
            lifetime="detached" if self.detached else None,
            join_wait=self.join_wait,
            labels=self.label_selector,
        )
        groups = place(order, Deadline(self.placement_timeout, f"the placement of {self!r}"))
        return _by_address_within_sizes(groups)

    def _base_name(self, name: str | None) -> str:
        counts = "_".join(str(count) for count in self.store)
        if self.name_prefix is not None:
            return f"{self.name_prefix}fanfold_pool_{counts}"
        return name or f"pool-{os.urandom(4).hex()}-{counts}"

    def bundles(self) -> list[BundlePlace]:
        """Return where each rank sits, in rank order; the pool is placed if it is not."""
        where = [(group, index, node) for group in self.pgs for index, node in sorted(_node_ids(group).items())]
        addresses = node_addresses()
        if self._strategy != "STRICT_PACK":
            where.sort(key=lambda item: (address_sort_key(addresses[item[2]]), item[2]))
        where = self._part_of(where)
        entries = [group.id.hex() if self._strategy == "STRICT_PACK" else node for group, _, node in where]
        return [
            BundlePlace(slot.rank, slot, group, index, node, addresses[node])
            for slot, (group, index, node) in zip(_slots_by(entries), where, strict=True)
        ]

    def _part_of(self, where: list[tuple[PlacementGroup, int, str]]) -> list[tuple[PlacementGroup, int, str]]:
        return where

    def slots(self) -> tuple[Slot, ...]:
        """The place of each rank, in rank order; as it really is where an entry may be on several nodes."""
        if self._strategy == "STRICT_PACK":
            return super().slots()
        return tuple(place.slot for place in self.bundles())

    def describe(self) -> str:
        """Return a table of the ranks' places."""
        kind = "detached" if self.detached else "lives with its driver"
        lines = [f"{self!r}, {kind}, {self.max_colocate_count} groups may share it"]
        if not self.is_placed:
            return "\n".join([*lines, "  not placed yet"])
        names = {group.id.hex(): placement_group_table(group)["name"] for group in self.pgs}
        lines += [
            f"  rank {place.rank}: node {place.address}, bundle {place.bundle_index} of "
            f"{names[place.placement_group.id.hex()]}"
            for place in self.bundles()
        ]
        return "\n".join(lines)

    def admit(self, group: str, places: Sequence[BundlePlace]) -> None:
        """Note that a group takes its share of these bundles.

        Raises:
            PoolError: As many groups as may share a bundle are in it already.
        """
        full = [place for place in places if SEATS.taken(place) >= self.max_colocate_count]
        if full:
            raise PoolError(
                f"group {group!r} cannot start in {self!r}: max_colocate_count={self.max_colocate_count} groups are in "
                f"it already (rank {full[0].rank}); close one, or make the pool with a greater max_colocate_count"
            )
        SEATS.take(places)

    def discharge(self, places: Sequence[BundlePlace]) -> None:
        """Note that a group has left these bundles."""
        SEATS.give_back(places)

    @property
    def has_residents(self) -> bool:
        """Whether a group that this process started lives in the pool."""
        return self._groups is not None and SEATS.any_in(self._groups)

    def close(self) -> None:
        """Remove the placement groups and whatever runs in them; closing twice is fine.

        A detached pool with a detached group in it is only let go of; it goes when the group is stopped.
        """
        if not (self.detached and self.has_residents):
            remove(self._groups or [])
            SEATS.forget(self._groups or [])
        self._groups = None

    @classmethod
    def adopt(
        cls, process_on_nodes: Sequence[int], groups: Sequence[PlacementGroup], **attributes: Any
    ) -> RayResourcePool:
        """Make a pool of placement groups that exist, in the order of ranks."""
        pool = cls(process_on_nodes, detached=True, **attributes)
        pool._groups = list(groups)
        SEATS.take(pool.bundles())
        return pool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sort_placement_group_by_node_ip(pgs: Sequence[PlacementGroup]) -> list[PlacementGroup]:
    """Return placement groups by the numeric address of the node of their first bundle.

    Several on one node are in the order of node id and name, so that ranks are where they were after a restart.
    """
    addresses = node_addresses()

    def key(group: PlacementGroup) -> tuple[AddressKey, str, str]:
        row = placement_group_table(group)
        node = row["bundles_to_node_id"][0]
        return address_sort_key(addresses.get(node, "")), node, row["name"]

    return sorted(pgs, key=key)


def _by_address_within_sizes(groups: Sequence[PlacementGroup]) -> list[PlacementGroup]:
    # Entry i of the pool says how many ranks node i has, so only entries of one size may change places.
    ordered = list(groups)
    for size in {group.bundle_count for group in groups}:
        places = [i for i, group in enumerate(groups) if group.bundle_count == size]
        for place_, group in zip(places, sort_placement_group_by_node_ip([groups[i] for i in places]), strict=True):
            ordered[place_] = group
    return ordered


def _slots_by(entries: Sequence[str]) -> list[Slot]:
    order = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    seen: Counter[str] = Counter()
    sizes = Counter(entries)
    slots = []
    for rank, entry in enumerate(entries):
        slots.append(Slot(rank, order[entry], seen[entry], sizes[entry]))
        seen[entry] += 1
    return slots


def _node_ids(group: PlacementGroup) -> dict[int, str]:
    row: dict[str, Any] = placement_group_table(group)
    return dict(row["bundles_to_node_id"])


def _part(amount: float, parts: int) -> float:
    # Rounded down: parts that add up to more than the whole would leave no room for the last group.
    return math.floor(amount / parts / _SMALLEST_SHARE + 1e-9) * _SMALLEST_SHARE


def _accelerator_resource(kind: str) -> str:
    if kind.startswith(_ACCELERATOR_PREFIX) or cluster_has(kind):
        return kind
    return f"{_ACCELERATOR_PREFIX}{kind}"
