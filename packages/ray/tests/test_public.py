from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import fanfold.ray
import pytest

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


def test_names_are_loaded_from_where_readers_of_the_source_see_them() -> None:
    tree = ast.parse(Path(fanfold.ray.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module
        for node in ast.walk(blocks[0])
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == fanfold.ray._HOMES
    assert sorted(seen) == sorted(fanfold.ray.__all__)
    assert set(fanfold.ray.__all__) <= set(dir(fanfold.ray))
    with pytest.raises(AttributeError, match=r"module 'fanfold\.ray' has no attribute 'RayWorkerGruop'"):
        _ = fanfold.ray.RayWorkerGruop  # type: ignore[attr-defined]


def test_a_rank_loads_nothing_of_what_drivers_need() -> None:
    check = "import sys, fanfold.ray.actors; print(*[name for name in sys.modules if name.startswith('fanfold.ray.')])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    loaded = {name.removeprefix("fanfold.ray.") for name in done.stdout.split()}
    assert loaded.isdisjoint({"group", "backend", "placement", "pools", "custodian", "registry", "cli", "starting"})


def test_importing_brings_neither_torch_nor_a_connection() -> None:
    check = (
        "import sys, ray, fanfold.ray; "
        "print('torch' in sys.modules, 'fanfold.dataproto' in sys.modules, ray.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "False", "False"]
