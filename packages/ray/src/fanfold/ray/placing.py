"""Making placement groups: all of them, by a deadline, or none and a table that says why."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fanfold.ray.cluster import node_states
from fanfold.ray.errors import NameTakenError, PlacementError
from fanfold.ray.feasibility import (
    NodeState,
    Resources,
    is_hopeless,
    need_of,
    separate_nodes,
    shared_nodes,
    shortage_table,
)
from fanfold.worker import Deadline, PoolError

import ray
from ray.exceptions import RaySystemError
from ray.util import placement_group, placement_group_table, remove_placement_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ray.util.placement_group import PlacementGroup

_ENTRIES_SHOWN = 8  # of a table that has to be read
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25  # seconds; a placement group on a free node takes some milliseconds


@dataclass(frozen=True)
class PlacementOrder:
    """What placement groups a pool wants.

    Attributes:
        names: P names, one a placement group.
        counts: P numbers of bundles.
        bundle: What each bundle holds.
        strategy: Ray's placement strategy.
        lifetime: `"detached"`, or None for the lifetime of this driver.
        join_wait: Seconds to wait for nodes that are still joining before the order is refused as impossible.
        labels: Labels that the nodes have to have, as Ray's label selectors write them.
    """

    names: Sequence[str]
    counts: Sequence[int]
    bundle: Resources
    strategy: str
    lifetime: str | None
    join_wait: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)

    def needs(self) -> list[Resources]:
        """What each placement group asks of the node it sits on; a bundle may sit anywhere unless strictly packed."""
        if self.strategy == "STRICT_PACK":
            return [need_of(self.bundle, count) for count in self.counts]
        return [self.bundle] * sum(self.counts)

    def asked(self) -> str:
        """Say in one line what is asked."""
        each = ", ".join(f"{amount:g} {name}" for name, amount in self.bundle.items())
        return f"process_on_nodes={list(self.counts)} with {each} for each process"


def place(order: PlacementOrder, deadline: Deadline) -> list[PlacementGroup]:
    """Make the placement groups and return them when all have their resources.

    Raises:
        PlacementError: There is no room, or there was none until the deadline. Nothing half-made is left.
        NameTakenError: A placement group of that name exists.
    """
    targets = _targets(order, _wait_for_nodes(order))
    made: list[PlacementGroup] = []
    try:
        for name, count, target in zip(order.names, order.counts, targets, strict=True):
            made.append(_make(order, name, count, target))
        _wait_until_created(order, made, deadline)
    except BaseException:
        remove(made)
        raise
    return made


def remove(groups: Sequence[PlacementGroup]) -> None:
    """Remove placement groups; those that are gone are no error."""
    if ray.is_initialized():  # else those of this process ended with its connection to the cluster
        for group in groups:
            remove_placement_group(group)


def _wait_for_nodes(order: PlacementOrder) -> list[NodeState]:
    joining = Deadline(order.join_wait, "nodes to join")
    while is_hopeless(order.needs(), nodes := node_states()):
        if joining.passed():
            raise PlacementError(_message(order, nodes, "this cluster can never place", "Ask for less, or add nodes"))
        time.sleep(min(_LONGEST_PAUSE, joining.left()))
    return nodes


def _targets(order: PlacementOrder, nodes: Sequence[NodeState]) -> Sequence[str | None]:
    # Ray may put several placement groups on one node although each could have its own; an entry means a node.
    if order.strategy != "STRICT_PACK":
        return [None] * len(order.counts)
    needs, avoid = order.needs(), "" if "GPU" in order.bundle else "GPU"
    found = separate_nodes(needs, nodes, avoid=avoid) or shared_nodes(needs, nodes, avoid=avoid)
    return [node.node_id if node else None for node in found]


def _make(order: PlacementOrder, name: str, count: int, target: str | None) -> PlacementGroup:
    bundles = [dict(order.bundle) for _ in range(count)]
    try:
        # The wish for a node is Ray's one private argument here: bundles know no node affinity, and the public
        # resource `node:<address>` cannot tell two nodes on one address apart.
        made: PlacementGroup = placement_group(
            bundles,
            strategy=order.strategy,
            name=name,
            lifetime=order.lifetime,
            _soft_target_node_id=target,
            **_label_argument(order.labels, count),
        )
    except RaySystemError as error:
        if "already exists" not in str(error):
            raise
        raise NameTakenError(
            f"a placement group named {name!r} exists already in this cluster; give the pool another name_prefix, or "
            "remove what is left of the old one (fanfold.ray.stop_group for a detached group)"
        ) from error
    return made


def _label_argument(labels: Mapping[str, str], count: int) -> dict[str, Any]:
    if not labels:
        return {}
    if "bundle_label_selector" not in inspect.signature(placement_group).parameters:
        raise PoolError(
            f"label_selector={dict(labels)} needs a newer Ray: {ray.__version__} places no bundles by labels"
        )
    return {"bundle_label_selector": [dict(labels)] * count}


def _wait_until_created(order: PlacementOrder, groups: Sequence[PlacementGroup], deadline: Deadline) -> None:
    for group in groups:
        if not _becomes(group, lambda state: state == "CREATED", deadline):
            limit = f"within {deadline.seconds:g} s this cluster could not place"
            raise PlacementError(
                _message(order, node_states(), limit, "Close what holds them, ask for less, or raise placement_timeout")
            )


def _becomes(group: PlacementGroup, wanted: Callable[[str], bool], deadline: Deadline) -> bool:
    pause = _FIRST_PAUSE
    while True:
        state = placement_group_table(group)["state"]
        if wanted(state):
            return True
        if deadline.passed() or state == "REMOVED":
            return False
        time.sleep(min(pause, deadline.left()))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _message(order: PlacementOrder, nodes: Sequence[NodeState], problem: str, advice: str) -> str:
    return f"{problem} {order.asked()}.\n{shortage_table(order.needs()[:_ENTRIES_SHOWN], nodes)}\n{advice}."
