"""Worker groups on a Ray cluster: placed, named, watched, detached and cleaned up.

Names are loaded when they are first asked for: the process of each rank needs a part of this package, and loading the
rest would double what that costs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanfold.ray.addresses import address_sort_key
    from fanfold.ray.attaching import attach
    from fanfold.ray.backend import RayBackend
    from fanfold.ray.bundles import BundlePlace, RankPlacement
    from fanfold.ray.checking import checking_inputs
    from fanfold.ray.connecting import NAMESPACE, connect
    from fanfold.ray.custodian import GroupState
    from fanfold.ray.errors import (
        BrokenGroupError,
        CollectiveGroupError,
        GroupStartingError,
        LifetimeError,
        NameTakenError,
        NoClusterError,
        NoSuchGroupError,
        PartLostError,
        PlacementError,
        StaleResultError,
        StoreFullError,
    )
    from fanfold.ray.group import RayWorkerGroup
    from fanfold.ray.helpers import parallel_put, ray_noset_visible_devices
    from fanfold.ray.ledger import CallLedger
    from fanfold.ray.placement import RayResourcePool, sort_placement_group_by_node_ip
    from fanfold.ray.pools import (
        ResourcePoolManager,
        SubRayResourcePool,
        extract_pg_from_exist,
        merge_resource_pool,
        split_resource_pool,
    )
    from fanfold.ray.recipe import RayClassWithInitArgs
    from fanfold.ray.registry import list_groups, stop_group
    from fanfold.ray.repairs import FailurePolicy
    from fanfold.ray.staging import stage
    from fanfold.ray.store import RayStore
    from fanfold.ray.tracing import trace
    from fanfold.worker import (
        create_colocated_worker_cls,
        create_colocated_worker_cls_fused,
        create_colocated_worker_raw_cls,
    )

__all__ = [
    "NAMESPACE",
    "BrokenGroupError",
    "BundlePlace",
    "CallLedger",
    "CollectiveGroupError",
    "FailurePolicy",
    "GroupStartingError",
    "GroupState",
    "LifetimeError",
    "NameTakenError",
    "NoClusterError",
    "NoSuchGroupError",
    "PartLostError",
    "PlacementError",
    "RankPlacement",
    "RayBackend",
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RayStore",
    "RayWorkerGroup",
    "ResourcePoolManager",
    "StaleResultError",
    "StoreFullError",
    "SubRayResourcePool",
    "address_sort_key",
    "attach",
    "checking_inputs",
    "connect",
    "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
    "create_colocated_worker_raw_cls",
    "extract_pg_from_exist",
    "list_groups",
    "merge_resource_pool",
    "parallel_put",
    "ray_noset_visible_devices",
    "sort_placement_group_by_node_ip",
    "split_resource_pool",
    "stage",
    "stop_group",
    "trace",
]

# Where each name is defined: what the imports above say to those who only read this file.
_NAMES = {
    "fanfold.ray.addresses": "address_sort_key",
    "fanfold.ray.attaching": "attach",
    "fanfold.ray.backend": "RayBackend",
    "fanfold.ray.bundles": "BundlePlace RankPlacement",
    "fanfold.ray.checking": "checking_inputs",
    "fanfold.ray.connecting": "NAMESPACE connect",
    "fanfold.ray.custodian": "GroupState",
    "fanfold.ray.errors": (
        "BrokenGroupError CollectiveGroupError GroupStartingError LifetimeError NameTakenError NoClusterError "
        "NoSuchGroupError PartLostError PlacementError StaleResultError StoreFullError"
    ),
    "fanfold.ray.group": "RayWorkerGroup",
    "fanfold.ray.helpers": "parallel_put ray_noset_visible_devices",
    "fanfold.ray.ledger": "CallLedger",
    "fanfold.ray.placement": "RayResourcePool sort_placement_group_by_node_ip",
    "fanfold.ray.pools": (
        "ResourcePoolManager SubRayResourcePool extract_pg_from_exist merge_resource_pool split_resource_pool"
    ),
    "fanfold.ray.recipe": "RayClassWithInitArgs",
    "fanfold.ray.registry": "list_groups stop_group",
    "fanfold.ray.repairs": "FailurePolicy",
    "fanfold.ray.staging": "stage",
    "fanfold.ray.store": "RayStore",
    "fanfold.ray.tracing": "trace",
    "fanfold.worker": "create_colocated_worker_cls create_colocated_worker_cls_fused create_colocated_worker_raw_cls",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # whoever checks types knows the names above, and shall say of others that there are none

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
