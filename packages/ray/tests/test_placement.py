from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
import ray
from cluster_state import inventory, until
from fanfold.ray import NameTakenError, PlacementError, RayResourcePool, RayWorkerGroup, sort_placement_group_by_node_ip
from fanfold.ray.answers import RankAnswer, devices_of
from fanfold.worker import PoolError, Slot, Worker
from ray.util import placement_group, placement_group_table, remove_placement_group
from sample_workers import Plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.cluster_utils import Cluster


@pytest.fixture
def gpu_node(cluster: Cluster) -> Iterator[None]:
    node = cluster.add_node(num_cpus=2, num_gpus=2, resources={"accelerator_type:TESTCHIP": 1.0})
    until(lambda: ray.cluster_resources().get("GPU") == 2)
    yield
    cluster.remove_node(node)
    until(lambda: "GPU" not in ray.cluster_resources())


def node_of(pool: RayResourcePool) -> list[str]:
    return [place.node_id for place in pool.bundles()]


def test_nothing_is_placed_before_it_is_needed(cluster: Cluster) -> None:
    pool = RayResourcePool([2, 2])
    assert not pool.is_placed
    assert "not placed yet" in pool.describe()


def test_each_entry_has_a_node_of_its_own(cluster: Cluster) -> None:
    with RayResourcePool([2, 2]) as pool:
        nodes = node_of(pool)
        assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
        assert len(pool.pgs) == 2
        assert pool.get_placement_groups() == pool.pgs
        assert pool.slots() == (Slot(0, 0, 0, 2), Slot(1, 0, 1, 2), Slot(2, 1, 0, 2), Slot(3, 1, 1, 2))
        assert "rank 3: node" in pool.describe()
        names = {row["name"] for row in map(placement_group_table, pool.pgs)}
        assert names <= inventory()[0]
    assert not names & inventory()[0]
    pool.close()


def test_entries_share_a_node_where_there_are_too_few(cluster: Cluster) -> None:
    with RayResourcePool([1, 1, 1]) as pool:
        assert len(node_of(pool)) == 3
        assert len(set(node_of(pool))) == 2


def test_uneven_entries_keep_their_places(cluster: Cluster) -> None:
    with RayResourcePool([1, 3]) as pool:
        nodes = node_of(pool)
        assert [group.bundle_count for group in pool.pgs] == [1, 3]
        assert nodes[0] != nodes[1] == nodes[2] == nodes[3]
        assert [place.slot.local_world_size for place in pool.bundles()] == [1, 3, 3, 3]


def test_cpus_do_not_depend_on_how_many_groups_may_share(cluster: Cluster) -> None:
    with RayResourcePool([8], cpus_per_process=0.5, max_colocate_count=10) as pool:
        row = placement_group_table(pool.pgs[0])
        assert list(row["bundles"].values()) == [{"CPU": 0.5}] * 8
        assert pool.share() == {"num_cpus": pytest.approx(0.05), "num_gpus": 0.0}


def test_shares_never_add_up_to_more_than_the_bundle(cluster: Cluster) -> None:
    pool = RayResourcePool([1], cpus_per_process=1, max_colocate_count=3)
    assert pool.share()["num_cpus"] == pytest.approx(0.3333, abs=1e-9)
    with pytest.raises(PoolError, match="cannot be shared by max_colocate_count=10"):
        RayResourcePool([1], cpus_per_process=0.0001)


def test_too_large_is_refused_at_once_with_a_table(cluster: Cluster) -> None:
    # The cluster hears of what was freed a moment later.
    until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
    with pytest.raises(PlacementError) as refused:
        RayResourcePool([16], placement_timeout=3600).get_placement_groups()  # which it does not wait for
    message = str(refused.value)
    assert "can never place process_on_nodes=[16] with 1 CPU for each process" in message
    assert "CPU       16               4        4" in message


def test_two_entries_that_fit_only_in_sum_are_refused_at_once(cluster: Cluster) -> None:
    with pytest.raises(PlacementError, match=r"can never place process_on_nodes=\[3, 3, 3\]"):
        RayResourcePool([3, 3, 3]).get_placement_groups()


def test_busy_is_waited_for_and_then_says_who_holds_it(cluster: Cluster) -> None:
    holder = placement_group([{"CPU": 3.0}] * 2, strategy="STRICT_SPREAD", name="holder")
    assert holder.wait(20)
    try:
        with pytest.raises(PlacementError) as refused:
            RayResourcePool([2], placement_timeout=0.5).get_placement_groups()
        message = str(refused.value)
        assert "within 0.5 s this cluster could not place process_on_nodes=[2]" in message
        assert "holder (3)" in message
        assert not [name for name in inventory()[0] if name.startswith("pool-")]
    finally:
        remove_placement_group(holder)


def test_room_that_is_freed_in_time_is_taken(cluster: Cluster) -> None:
    holder = placement_group([{"CPU": 4.0}] * 2, strategy="STRICT_SPREAD")
    assert holder.wait(20)

    @ray.remote(num_cpus=0)
    def free_later() -> None:
        time.sleep(0.5)
        remove_placement_group(holder)

    freed = free_later.remote()
    with RayResourcePool([2], placement_timeout=30) as pool:
        assert len(pool.bundles()) == 2
    ray.get(freed, timeout=20)


def test_gpus_are_refused_where_there_are_none(cluster: Cluster) -> None:
    with pytest.raises(PoolError, match="use_gpu=True, and no node of this cluster has a GPU"):
        RayResourcePool([1], use_gpu=True).get_placement_groups()
    with RayResourcePool([1]) as pool:
        assert pool.bundle() == {"CPU": 1.0}


def test_gpus_are_taken_where_there_are_any(gpu_node: None) -> None:
    with RayResourcePool([2]) as pool:
        assert pool.bundle() == {"CPU": 1.0, "GPU": 1.0}
        assert pool.share() == {"num_cpus": pytest.approx(0.1), "num_gpus": pytest.approx(0.1)}
        assert len(set(node_of(pool))) == 1
    with RayResourcePool([1], use_gpu=False) as pool:
        assert pool.bundle() == {"CPU": 1.0}


def test_ranks_see_their_own_device_or_those_of_their_node(gpu_node: None) -> None:
    def seen(worker: Worker) -> tuple[str, str]:
        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["LOCAL_RANK"]

    with RayResourcePool([2], cpus_per_process=0.5) as pool:
        with RayWorkerGroup(pool, Plain) as group:
            own = [place.gpu_ids[0] for place in group.placement()]
            assert group.execute(seen) == [(own[0], "0"), (own[1], "1")]
        with RayWorkerGroup(pool, Plain, visible_devices="node") as group:
            own = [place.gpu_ids[0] for place in group.placement()]
            assert sorted(own) == ["0", "1"]
            assert group.execute(seen) == [(",".join(own), "0"), (",".join(own), "1")]
        with RayWorkerGroup(pool, Plain, use_gpu=False) as group:
            assert [place.gpu_ids for place in group.placement()] == [(), ()]


def test_devices_that_are_shared_are_left_as_ray_shows_them() -> None:
    def peer(*gpus: str) -> RankAnswer:
        return RankAnswer("a", 1, "n", "10.0.0.1", gpus, None, None, None)

    assert devices_of([peer("3"), peer("1")]) == {"CUDA_VISIBLE_DEVICES": "3,1"}
    assert devices_of([peer("3"), peer("3")]) == {}
    assert devices_of([peer(), peer()]) == {}


def test_a_kind_of_accelerator_is_a_node_that_has_it(gpu_node: None) -> None:
    with RayResourcePool([1], use_gpu=False, accelerator_type="TESTCHIP") as pool:
        (node,) = node_of(pool)
        (has,) = [row for row in ray.nodes() if row["NodeID"] == node]
        assert "accelerator_type:TESTCHIP" in has["Resources"]
    with pytest.raises(PlacementError, match=r"can never place .* 0.0001 accelerator_type:OTHER for each process"):
        RayResourcePool([1], use_gpu=False, accelerator_type="OTHER").get_placement_groups()


def test_names_are_unique_unless_given(cluster: Cluster) -> None:
    with RayResourcePool([1]) as one, RayResourcePool([1]) as other, RayResourcePool([1], name_prefix="my-") as third:
        names = [placement_group_table(pool.pgs[0])["name"] for pool in (one, other, third)]
        assert len(set(names)) == 3
        assert names[2] == "my-fanfold_pool_1:0"
        with pytest.raises(NameTakenError, match="my-fanfold_pool_1:0"):
            RayResourcePool([1], name_prefix="my-").get_placement_groups()


def test_one_pool_is_placed_by_one_strategy(cluster: Cluster) -> None:
    with RayResourcePool([1]) as pool:
        pool.get_placement_groups()
        with pytest.raises(PoolError, match="placed by STRICT_PACK"):
            pool.get_placement_groups("PACK")
        with pytest.raises(PoolError, match="placed on the cluster already"):
            pool.add_node(1)


def test_packing_over_nodes_keeps_neighbours_on_one_node(cluster: Cluster) -> None:
    with RayResourcePool([6]) as pool:
        pool.get_placement_groups("PACK")
        nodes = node_of(pool)
        assert len(set(nodes)) == 2
        assert [node for i, node in enumerate(nodes) if i == 0 or nodes[i - 1] != node] == list(dict.fromkeys(nodes))
        sizes = [nodes.count(node) for node in nodes]
        assert [slot.local_world_size for slot in pool.slots()] == sizes
        assert [slot.rank for slot in pool.slots()] == list(range(6))


def test_sorting_is_stable_over_any_order_of_the_list(cluster: Cluster) -> None:
    with RayResourcePool([1, 1]) as pool:
        groups = sort_placement_group_by_node_ip(pool.pgs)
        assert [group.id for group in sort_placement_group_by_node_ip(groups[::-1])] == [group.id for group in groups]
