"""Worker groups on a Ray cluster: placed, named, watched, detached and cleaned up."""

from fanfold.ray.addresses import address_sort_key
from fanfold.ray.attach import attach
from fanfold.ray.backend import RayBackend
from fanfold.ray.bundles import BundlePlace, RankPlacement
from fanfold.ray.checking import checking_inputs
from fanfold.ray.connect import NAMESPACE, connect
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
