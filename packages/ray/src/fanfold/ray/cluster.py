"""What the cluster says about itself: nodes, free resources, placement groups, names.

The only place that asks Ray for what is free on each node, which has no public door.
"""

from __future__ import annotations

from typing import Any

from fanfold.ray.errors import NoClusterError
from fanfold.ray.feasibility import NodeState

import ray
from ray._private import state as ray_state  # no public call says what is free per node
from ray.util import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_HEAD, _SMALLEST_SHARE = "node:__internal_head__", 0.0001
_LIVING = ("PENDING", "CREATED", "RESCHEDULING", "PREPARED")


def require_cluster(what: str) -> None:
    """Refuse to go on without a cluster, instead of letting Ray start one on this machine behind the user's back.

    Raises:
        NoClusterError: This process is not connected.
    """
    if not ray.is_initialized():
        raise NoClusterError(
            f"{what} needs a Ray cluster, and this process is not connected to one. Call ray.init(address='auto') for "
            "the cluster that `ray start --head` started on this machine, or ray.init() for one of this process alone"
        )


def cluster_id() -> str:
    """Return what tells this process's cluster from every other one, also from one at the same address before."""
    context = ray.get_runtime_context()
    ask = getattr(context, "get_session_name", None)  # older versions of Ray do not say it publicly
    return str(context.worker.node.session_name if ask is None else ask())


def current_namespace() -> str:
    """Return the namespace in which this process names its actors."""
    return str(ray.get_runtime_context().namespace)


def node_states() -> list[NodeState]:
    """Return every living node with what it has, what is free and which placement groups hold the rest."""
    free = ray_state.available_resources_per_node()
    held = _held_by_node()
    return [
        NodeState(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            total=node["Resources"],
            free=free.get(node["NodeID"], {}),
            held=held.get(node["NodeID"], {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def node_addresses() -> dict[str, str]:
    """Return the address of every node that the cluster ever had, by id."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}


def on_head_node() -> dict[str, Any]:
    """Return the options that start an actor where the cluster's own tables are; where none says, on any node.

    By the resource that the head has, not by the node's id: a node that has just joined knows no ids of others yet, and
    would keep for itself what it is asked to place.
    """
    if cluster_has(_HEAD):
        return {"resources": {_HEAD: _SMALLEST_SHARE}}
    living = next(node["NodeID"] for node in ray.nodes() if node["Alive"])
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(living, soft=True)}


def cluster_has(resource: str) -> bool:
    """Say whether any living node has some of a resource."""
    return any(node["Alive"] and node["Resources"].get(resource, 0.0) > 0 for node in ray.nodes())


def living_placement_groups() -> list[dict[str, object]]:
    """Return Ray's own rows about the placement groups that are not removed."""
    return [row for row in placement_group_table().values() if row["state"] in _LIVING]


def _held_by_node() -> dict[str, dict[str, dict[str, float]]]:
    held: dict[str, dict[str, dict[str, float]]] = {}
    for row in living_placement_groups():
        holder = str(row["name"] or row["placement_group_id"])
        for index, node_id in row["bundles_to_node_id"].items():  # type: ignore[attr-defined]
            amounts = held.setdefault(node_id, {}).setdefault(holder, {})
            for name, amount in row["bundles"][index].items():  # type: ignore[index]
                amounts[name] = amounts.get(name, 0.0) + amount
    return held
