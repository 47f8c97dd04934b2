from __future__ import annotations

import subprocess
import sys

import fanfold.ray

NAMES = """
BrokenGroupError BundlePlace CallLedger CollectiveGroupError FailurePolicy
GroupStartingError GroupState LifetimeError NAMESPACE NameTakenError NoClusterError
NoSuchGroupError PartLostError PlacementError RankPlacement RayBackend
RayClassWithInitArgs RayResourcePool RayStore RayWorkerGroup ResourcePoolManager
StaleResultError StoreFullError
SubRayResourcePool address_sort_key attach checking_inputs connect
create_colocated_worker_cls create_colocated_worker_cls_fused
create_colocated_worker_raw_cls extract_pg_from_exist list_groups merge_resource_pool parallel_put
ray_noset_visible_devices sort_placement_group_by_node_ip split_resource_pool stage stop_group trace
"""


def test_the_door_is_this_wide() -> None:
    assert sorted(fanfold.ray.__all__) == sorted(NAMES.split())
    assert all(hasattr(fanfold.ray, name) for name in fanfold.ray.__all__)


def test_importing_brings_neither_torch_nor_a_connection() -> None:
    check = (
        "import sys, ray, fanfold.ray; "
        "print('torch' in sys.modules, 'fanfold.dataproto' in sys.modules, ray.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "False", "False"]
