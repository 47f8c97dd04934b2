from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import ray
from cluster_state import inventory
from fanfold.ray import (
    PlacementError,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePoolManager,
    SubRayResourcePool,
    extract_pg_from_exist,
    merge_resource_pool,
    parallel_put,
    ray_noset_visible_devices,
    split_resource_pool,
)
from fanfold.worker import GroupUsageError, PoolError, Slot
from sample_workers import Plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.cluster_utils import Cluster


@pytest.fixture
def pool(cluster: Cluster) -> Iterator[RayResourcePool]:
    with RayResourcePool([1, 3], cpus_per_process=0.5, name_prefix="whole", max_colocate_count=2) as pool:
        yield pool


def seats(pool: RayResourcePool) -> list[tuple[str, int]]:
    return [(place.placement_group.id.hex(), place.bundle_index) for place in pool.bundles()]


def test_parts_are_consecutive_ranks_with_slots_of_their_own(pool: RayResourcePool) -> None:
    first, second = split_resource_pool(pool, 2)
    assert (first.store, second.store) == ([1, 1], [2])
    assert seats(first) + seats(second) == seats(pool)
    assert first.slots() == (Slot(0, 0, 0, 1), Slot(1, 1, 0, 1))
    assert second.slots() == (Slot(0, 0, 0, 2), Slot(1, 0, 1, 2))
    assert [place.slot for place in second.bundles()] == list(second.slots())
    assert second.start_bundle_index == 2
    assert (second.name_prefix, second.cpus_per_process, second.max_colocate_count) == ("whole_split_1", 0.5, 2)


def test_parts_of_parts_and_sizes_by_list(pool: RayResourcePool) -> None:
    _, large = split_resource_pool(pool, [1, 3])
    one, two = split_resource_pool(large, [1, 2])
    assert seats(one) + seats(two) == seats(pool)[1:]
    two.close()
    assert len([name for name in inventory()[0] if name.startswith("whole")]) == 2


@pytest.mark.parametrize("sizes", [3, 0, -1, [1, 1], [4, 0], [5, -1], []])
def test_sizes_that_do_not_come_out_even_are_refused(pool: RayResourcePool, sizes: int | list[int]) -> None:
    with pytest.raises(PoolError, match="pool of 4 processes cannot be split into"):
        split_resource_pool(pool, sizes)


def test_a_group_in_a_part_and_one_in_the_whole_share_seats(pool: RayResourcePool) -> None:
    _, second = split_resource_pool(pool, 2)
    with RayWorkerGroup(second, Plain) as small, RayWorkerGroup(pool, Plain) as large:
        nodes = [place.node_id for place in pool.bundles()]
        where = "lambda _worker: ray.get_runtime_context().get_node_id()"
        assert small.execute(eval(where, {"ray": ray})) == nodes[2:]
        assert large.execute(eval(where, {"ray": ray})) == nodes
        assert [row["LOCAL_WORLD_SIZE"] for row in small.where()] == ["2", "2"]
        with pytest.raises(PoolError, match="max_colocate_count=2 groups are in it already"):
            RayWorkerGroup(second, Plain)


def test_merging_keeps_ranks_in_order_and_refuses_what_differs(cluster: Cluster) -> None:
    with RayResourcePool([1, 2], name_prefix="a") as first, RayResourcePool([1], name_prefix="b") as second:
        both = merge_resource_pool(first, second)
        assert both.store == [1, 2, 1]
        assert seats(both) == seats(first) + seats(second)
        assert both.name_prefix == "a_b"
        both.close()
        assert {name[0] for name in inventory()[0]} >= {"a", "b"}
        with pytest.raises(PoolError, match=r"differ in cpus_per_process: 1.0 and 0.5"):
            merge_resource_pool(first, RayResourcePool([1], cpus_per_process=0.5))
        with pytest.raises(PoolError, match="parts of pools cannot be merged"):
            merge_resource_pool(both, second)


def test_placement_groups_are_taken_from_pools_that_exist(cluster: Cluster) -> None:
    with RayResourcePool([1, 2]) as small, RayResourcePool([3]) as large:
        pools = {"small": small, "large": large}
        found = extract_pg_from_exist(pools, ["small", "large"], RayResourcePool([2, 3]))
        assert [group.bundle_count for group in found] == [2, 3]
        with pytest.raises(PoolError, match=r"\[3\]\) does not fit placement groups of \[2, 1\] bundles"):
            extract_pg_from_exist(pools, ["small"], RayResourcePool([3]))
        with pytest.raises(PoolError, match="no pool middle; there are small, large"):
            extract_pg_from_exist(pools, ["middle"], RayResourcePool([1]))


def test_bundles_outside_of_the_groups_are_refused(pool: RayResourcePool) -> None:
    with pytest.raises(PoolError, match="there are 4 bundles"):
        SubRayResourcePool(pool.pgs, start_bundle_index=3, subgroup_world_size=2)


def test_a_manager_checks_all_pools_together(cluster: Cluster) -> None:
    manager = ResourcePoolManager({"train": [2], "roll": [3]}, {"actor": "train", "ref": "train", "rollout": "roll"})
    with pytest.raises(PoolError, match="not made yet"):
        manager.get_resource_pool("actor")
    manager.create_resource_pool()
    assert manager.get_n_gpus() == 5
    assert manager.get_resource_pool("actor") is manager.get_resource_pool("ref")
    assert manager.get_resource_pool("rollout").store == [3]
    with pytest.raises(PoolError, match="no role 'critic'; the roles are 'actor', 'ref', 'rollout'"):
        manager.get_resource_pool("critic")
    manager.get_resource_pool("actor").get_placement_groups()
    assert [name for name in inventory()[0] if name.startswith("train")] == ["trainfanfold_pool_2:0"]
    manager.close()
    manager.close()
    assert not [name for name in inventory()[0] if name.startswith("train")]
    with pytest.raises(PlacementError, match=r"can never place \{'train': \[3\], .*\} together"):
        ResourcePoolManager({"train": [3], "roll": [3], "more": [3]}, {}).create_resource_pool()
    with pytest.raises(PoolError, match="roles are mapped to absent"):
        ResourcePoolManager({"train": [3]}, {"actor": "absent"})


def test_objects_are_put_in_order(cluster: Cluster) -> None:
    references = parallel_put([{"number": number} for number in range(20)])
    assert [value["number"] for value in ray.get(references, timeout=30)] == list(range(20))
    assert ray.get(parallel_put([1, 2], max_workers=1), timeout=30) == [1, 2]
    with pytest.raises(GroupUsageError, match="at least one object"):
        parallel_put([])
    with pytest.raises(GroupUsageError, match="max_workers must be at least 1"):
        parallel_put([1], max_workers=0)


def test_switches_count_when_they_are_on() -> None:
    assert ray_noset_visible_devices({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"})
    assert not ray_noset_visible_devices({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "0"})
    assert not ray_noset_visible_devices({})
