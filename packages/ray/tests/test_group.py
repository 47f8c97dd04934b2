from __future__ import annotations

import random
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
import ray
from cluster_state import named
from fanfold.dispatch import Dispatch, register
from fanfold.ray import LifetimeError, NameTakenError, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from fanfold.ray.names import actor_named, named_actors
from fanfold.ray.refs import awaited
from fanfold.worker import (
    GroupCallError,
    GroupUsageError,
    MethodNameClashError,
    NotPicklableError,
    PoolError,
    RankEnvironmentError,
    RecipeError,
    WaitTimeoutError,
    Worker,
    WorkerLostError,
    WorkerStartError,
)
from sample_workers import Asynchronous, Fragile, Plain, StubbornError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ray.cluster_utils import Cluster


@pytest.fixture
def pool(cluster: Cluster) -> Iterator[RayResourcePool]:
    with RayResourcePool([2, 2], cpus_per_process=0.5) as pool:
        yield pool


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[RayResourcePool]:
    with RayResourcePool([1, 1], cpus_per_process=0.5) as pool:
        yield pool


@pytest.fixture(scope="module")
def group(two_nodes: Cluster) -> Iterator[RayWorkerGroup[Plain]]:
    """For tests that leave it as it was."""
    pool = RayResourcePool([2, 2], cpus_per_process=0.5)
    recipe = RayClassWithInitArgs(Plain, start=10)
    with pool, RayWorkerGroup(pool, recipe, name_prefix="g", worker_env={"COLOR": "red"}) as group:
        yield group


def test_ranks_know_who_they_are_before_their_module_is_imported(group: RayWorkerGroup[Plain]) -> None:
    said: list[dict[str, Any]] = group.where()
    assert [row["RANK"] for row in said] == ["0", "1", "2", "3"]
    assert [row["LOCAL_RANK"] for row in said] == ["0", "1", "0", "1"]
    assert [row["NODE_RANK"] for row in said] == ["0", "0", "1", "1"]
    assert {row["WORLD_SIZE"] for row in said} == {"4"}
    assert {row["LOCAL_WORLD_SIZE"] for row in said} == {row["RAY_LOCAL_WORLD_SIZE"] for row in said} == {"2"}
    assert [row["at import"] for row in said] == [(str(rank), "red") for rank in range(4)]
    assert {(row["WG_PREFIX"], row["WG_BACKEND"]) for row in said} == {("g", "ray")}
    assert len({(row["MASTER_ADDR"], row["MASTER_PORT"]) for row in said}) == 1


def test_names_and_places(group: RayWorkerGroup[Plain]) -> None:
    assert group.worker_names == ["gPlain_0:0", "gPlain_0:1", "gPlain_1:0", "gPlain_1:1"]
    nodes = group.execute(lambda _worker: ray.get_runtime_context().get_node_id())
    assert isinstance(group.resource_pool, RayResourcePool)
    assert nodes == [place.node_id for place in group.resource_pool.bundles()]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]


def test_placement_says_where_each_rank_runs(group: RayWorkerGroup[Plain]) -> None:
    assert isinstance(group.resource_pool, RayResourcePool)
    places = group.placement()
    assert [(place.rank, place.name) for place in places] == list(enumerate(group.worker_names))
    assert [place.node_id for place in places] == [place.node_id for place in group.resource_pool.bundles()]
    assert [place.pid for place in places] == group.execute(lambda _worker: __import__("os").getpid())
    assert [place.bundle_index for place in places] == [0, 1, 0, 1]
    groups = [place.placement_group.id for place in places if place.placement_group is not None]
    assert groups == [place.placement_group.id for place in group.resource_pool.bundles()]
    joined = RayWorkerGroup(worker_handles=group.workers[2:], ray_cls_with_init=Plain)
    assert [place.pid for place in joined.placement()] == [place.pid for place in places[2:]]
    assert [place.rank for place in group[1:3].placement()] == [1, 2]


def test_methods_run_where_the_constructor_ran(group: RayWorkerGroup[Plain]) -> None:
    assert group.threads() == [(True, True)] * 4


def test_calls_collect_in_rank_order(group: RayWorkerGroup[Plain]) -> None:
    assert group.add(1, times=2) == [12] * 4
    assert group.add(-2) == [10] * 4
    assert group.lead() == 0
    assert group.call() == [("call", rank, 4) for rank in range(4)]
    assert group.execute_all("_hidden") == ["found"] * 4


def test_raw_handles_are_plain_ray_handles(group: RayWorkerGroup[Plain]) -> None:
    handle = group.workers[2]
    assert ray.get(handle.add.remote(amount=5, times=1), timeout=30) == 15
    assert ray.get(handle.__ray_call__.remote(lambda worker: (worker.rank, worker.value)), timeout=30) == (2, 15)
    assert ray.get(handle.double.remote(4), timeout=30) == 8
    assert ray.get(handle.class_limit.remote(), timeout=30) == 3
    assert ray.get(handle._hidden.remote(), timeout=30) == "found"
    assert [ray.get(item, timeout=30) for item in handle.count.remote(3)] == [0, 1, 2]
    named: Any = ray.get_actor("gPlain_1:0")
    assert ray.get(named.add.remote(-5), timeout=30) == 10
    with pytest.raises(TypeError, match="unexpected keyword argument 'tiems'"):
        handle.add.remote(1, tiems=1)
    with pytest.raises(TypeError, match="missing a required argument"):
        handle.add.remote()


def test_a_call_that_does_not_block_is_a_list_of_references(group: RayWorkerGroup[Plain]) -> None:
    call, other = group.later(0.0), group.later(0.0)
    assert ray.get(list(call) + list(other), timeout=30) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert ray.get(call, timeout=30) == [0, 1, 2, 3]
    assert call.result() == [0, 1, 2, 3]
    assert ray.get(call[1:3], timeout=30) == [1, 2]


def test_a_reference_among_the_arguments_arrives_as_its_value(group: RayWorkerGroup[Plain]) -> None:
    assert group.identity(ray.put({"a": 1})) == [{"a": 1}] * 4
    assert group.identity("x" * 100_000) == ["x" * 100_000] * 4


def test_mesh_is_asked_from_the_ranks(group: RayWorkerGroup[Plain]) -> None:
    group.register_meshes()
    mesh = group.mesh("halves")
    assert (mesh.axes, mesh.ranks) == (("dp", "replica"), (0, 1, 2, 3))
    assert mesh.coordinates == ((0, 0), (0, 1), (1, 0), (1, 1))


def test_the_first_failure_ends_a_call_and_keeps_its_class(group: RayWorkerGroup[Plain], tmp_path: Path) -> None:
    with pytest.raises(KeyError) as caught:
        group.fail_on(2, "key", others_wait_for=tmp_path / "over")
    (tmp_path / "over").touch()
    assert isinstance(caught.value, GroupCallError)
    assert [failure.rank for failure in caught.value.failures] == [2]
    assert caught.value.unfinished == (0, 1, 3)
    message = str(caught.value)
    assert "Plain.fail_on failed on rank 2" in message
    assert "KeyError: 'shard-2-missing'" in message
    assert "gPlain_1:0" in message
    assert 'raise KeyError("shard-2-missing")' in message
    assert "fanfold/ray/actors.py" not in message
    assert "\x1b" not in message


def test_errors_with_constructors_of_their_own_arrive_whole(group: RayWorkerGroup[Plain]) -> None:
    with pytest.raises(StubbornError) as caught:
        group.fail_on(1, "stubborn")
    assert caught.value.code == 7
    with pytest.raises(StubbornError) as raw:
        ray.get(group.workers[1].fail_on.remote(1, "stubborn"), timeout=30)
    assert raw.value.code == 7


def test_a_rank_that_dies_is_named_at_once(pair: RayResourcePool, tmp_path: Path) -> None:
    with RayWorkerGroup(pair, Plain, name_prefix="d") as group:
        with pytest.raises(WorkerLostError) as caught:
            group.fail_on(1, "exit", others_wait_for=tmp_path / "over")
        (tmp_path / "over").touch()
        assert "failed on rank 1" in str(caught.value)
        assert "worker dPlain_1:0 (rank 1, pid " in str(caught.value)
        assert "its process ended without a word" in str(caught.value)
        assert isinstance(caught.value, WorkerLostError)
        assert caught.value.log[-1] == "these are my last words"
        with pytest.raises(WorkerLostError, match="rank 1"):
            group.where()


def test_results_and_arguments_that_cannot_travel_are_said_so(group: RayWorkerGroup[Plain]) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        group.unpicklable()
    with pytest.raises(NotPicklableError, match="an argument of type lock cannot travel"):
        group.identity(__import__("threading").Lock())


def test_async_methods_are_awaited_and_overlap(pair: RayResourcePool) -> None:
    with RayWorkerGroup(pair, Asynchronous) as group:
        assert group.overlap(0.0) == [0, 1]
        calls = [group.execute_all_async("overlap", 1.0) for _ in range(3)]
        assert [call.result() for call in calls] == [[0, 1]] * 3
        assert min(group.most()) >= 2
        assert group.same_thread() == [True] * 2
        handle = group.workers[1]
        assert ray.get(handle.overlap.remote(0.0), timeout=30) == 1
        assert [ray.get(item, timeout=30) for item in handle.stream.remote(3)] == [0, 1, 2]
        assert ray.get(handle.__ray_call__.remote(lambda worker: worker.rank), timeout=30) == 1


def test_closing_frees_names_and_shares(pair: RayResourcePool) -> None:
    group = RayWorkerGroup(pair, Plain, name_prefix="again")
    assert group.lead() == 0
    group.close()
    group.close()
    assert named("again")[1] == []
    with pytest.raises(GroupUsageError, match="closed"):
        group.lead()
    with RayWorkerGroup(pair, Plain, name_prefix="again") as second:
        assert second.lead() == 0


def test_a_constructors_own_error_comes_with_its_rank_and_nothing_is_left(pair: RayResourcePool) -> None:
    with pytest.raises(WorkerStartError) as caught:
        RayWorkerGroup(pair, RayClassWithInitArgs(Fragile, 1, "raise"), name_prefix="f")
    message = str(caught.value)
    assert message.startswith("rank 1 (fFragile_1:0, node ")
    assert "could not build its Fragile: KeyError: 'no such model'" in message
    assert 'raise KeyError("no such model")' in message
    assert isinstance(caught.value.__cause__, KeyError)
    assert named("fFragile")[1] == []


def test_a_process_that_ends_while_it_builds_is_named(pair: RayResourcePool) -> None:
    with pytest.raises(WorkerStartError, match=r"rank 1 \(fFragile_1:0, .*is gone") as caught:
        RayWorkerGroup(pair, RayClassWithInitArgs(Fragile, 1, "exit"), name_prefix="f")
    assert isinstance(caught.value.__cause__, WorkerLostError)
    assert named("fFragile")[1] == []


def test_a_start_that_takes_too_long_names_who_is_missing(pair: RayResourcePool) -> None:
    with pytest.raises(
        WaitTimeoutError, match=r"rank 1 \(fFragile_1:0, node .*, pid .*\) is still importing or building"
    ):
        RayWorkerGroup(pair, RayClassWithInitArgs(Fragile, 1, "hang"), name_prefix="f", start_timeout=8)
    assert named("fFragile")[1] == []


def test_a_wait_that_takes_too_long_says_what_for(cluster: Cluster) -> None:
    signal: Any = ray.remote(num_cpus=0)(Event).remote()
    reference = signal.wait.remote()
    with pytest.raises(WaitTimeoutError, match=r"^the count was not over within 0.1 s; still missing: somebody$"):
        awaited(reference, 0.1, "the count", "somebody")
    ray.kill(signal)


def test_constructor_arguments_may_be_references_and_handles(pair: RayResourcePool) -> None:
    with RayWorkerGroup(pair, RayClassWithInitArgs(Plain, ray.put(5))) as group:
        assert group.add(1) == [6] * 2


def test_decorated_classes_are_taken_and_recipes_not_changed(pair: RayResourcePool) -> None:
    recipe = RayClassWithInitArgs(ray.remote(num_gpus=3, runtime_env={"env_vars": {"A": "1"}})(Plain), start=1)
    before = (recipe.cls, recipe.args, dict(recipe.kwargs), recipe.options)
    assert recipe.cls is Plain
    assert recipe.options == {"runtime_env": {"env_vars": {"A": "1"}}}
    with RayWorkerGroup(pair, recipe) as one, RayWorkerGroup(pair, ray.remote(Plain)) as other:
        assert not set(one.worker_names) & set(other.worker_names)
        assert one.execute(lambda _worker: __import__("os").environ["A"]) == ["1"] * 2
    assert (recipe.cls, recipe.args, dict(recipe.kwargs), recipe.options) == before
    recipe.update_options({"runtime_env": {"env_vars": {"B": "2"}}, "max_concurrency": 2})
    assert recipe.options == {"runtime_env": {"env_vars": {"A": "1", "B": "2"}}, "max_concurrency": 2}
    with pytest.raises(GroupUsageError, match="lifetime, num_gpus cannot be options"):
        recipe.update_options({"num_gpus": 1, "lifetime": "detached"})


def test_a_recipe_without_arguments_is_enough_for_attaching_only(pair: RayResourcePool) -> None:
    recipe = RayClassWithInitArgs(Fragile)
    assert recipe.cls is Fragile
    with pytest.raises(RecipeError, match="bad_rank"):
        RayWorkerGroup(pair, recipe)
    with pytest.raises(RecipeError, match="did you mean 'bad_rank'"):
        RayClassWithInitArgs(Fragile, bad_rnak=1)


def test_names_do_not_come_from_the_users_random_state(pair: RayResourcePool) -> None:
    groups: list[RayWorkerGroup] = []
    for _ in range(2):
        random.seed(1234)
        groups.append(RayWorkerGroup(pair, Plain))
        assert random.random() == random.Random(1234).random()
    assert not set(groups[0].worker_names) & set(groups[1].worker_names)
    assert [group.lead() for group in groups] == [0, 0]
    for group in groups:
        group.close()


def test_groups_on_one_pool_meet_at_different_places_that_rank_zero_can_bind(pair: RayResourcePool) -> None:
    def bind(worker: Any) -> tuple[str, str]:
        import os  # noqa: PLC0415
        import socket  # noqa: PLC0415

        if worker.rank == 0:
            with socket.socket() as own:
                own.bind(("", int(os.environ["MASTER_PORT"])))
        return os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]

    with RayWorkerGroup(pair, Plain) as one, RayWorkerGroup(pair, Plain) as other:
        places = [set(group.execute(bind)) for group in (one, other)]
        assert [len(place) for place in places] == [1, 1]
        assert places[0] != places[1]
    with RayWorkerGroup(pair, Plain, master_addr="127.0.0.1", master_port="4567") as told:
        assert {(row["MASTER_ADDR"], row["MASTER_PORT"]) for row in told.where()} == {("127.0.0.1", "4567")}


def test_more_groups_than_may_share_are_refused(cluster: Cluster) -> None:
    with RayResourcePool([1], max_colocate_count=1) as pool, RayWorkerGroup(pool, Plain) as first:
        with pytest.raises(PoolError, match="max_colocate_count=1 groups are in it already"):
            RayWorkerGroup(pool, Plain)
        first.close()
        with RayWorkerGroup(pool, Plain) as second:
            assert second.lead() == 0


def test_a_list_is_a_pool_of_the_groups_own(cluster: Cluster) -> None:
    with RayWorkerGroup([1, 2], Plain) as group:
        assert [row["LOCAL_WORLD_SIZE"] for row in group.where()] == ["1", "2", "2"]


def test_a_workers_name_that_is_taken_is_refused(pair: RayResourcePool, group: RayWorkerGroup[Plain]) -> None:
    before = named_actors()
    with pytest.raises(NameTakenError, match=r"'gPlain_0:0' lives already in namespace 'fanfold'"):
        RayWorkerGroup(pair, Plain, name_prefix="g")
    assert group.lead() == 0
    assert named_actors() == before


def test_lifetimes_have_to_agree(pair: RayResourcePool) -> None:
    with pytest.raises(LifetimeError, match=r"the group is detached, but .* ends with this driver"):
        RayWorkerGroup(pair, Plain, detached=True)
    detached = RayResourcePool([1], detached=True)
    with pytest.raises(LifetimeError, match=r"is detached, but the group in it ends with this driver"):
        RayWorkerGroup(detached, Plain)
    assert not detached.is_placed


def test_wrong_use_is_refused_before_anything_starts(pair: RayResourcePool) -> None:
    with pytest.raises(RankEnvironmentError, match="RANK"):
        RayWorkerGroup(pair, Plain, worker_env={"RANK": "7"})
    with pytest.raises(GroupUsageError, match="needs its worker class"):
        RayWorkerGroup(pair)
    with pytest.raises(GroupUsageError, match="go together"):
        RayWorkerGroup(pair, Plain, master_addr="127.0.0.1")
    with pytest.raises(GroupUsageError, match=r"use_gpu=True, but .* has no GPUs"):
        RayWorkerGroup(RayResourcePool([1], use_gpu=False), Plain, use_gpu=True)
    with pytest.raises(GroupUsageError, match="device_name is 'cpu' or 'cuda'"):
        RayWorkerGroup(pair, Plain, device_name="npu")
    with pytest.raises(GroupUsageError, match="worker_names and worker_handles are for workers that exist"):
        RayWorkerGroup(pair, Plain, worker_names=["a"])
    for option in ("start_timeout", "call_timeout", "warn_after"):
        limits: dict[str, Any] = {option: 0}
        with pytest.raises(GroupUsageError, match=f"{option}.* got 0"):
            RayWorkerGroup(RayResourcePool([99]), Plain, **limits)
    with pytest.raises(TypeError, match="nmae_prefix"):
        RayWorkerGroup(pair, Plain, nmae_prefix="x")  # type: ignore[call-arg]


class Clash(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def worker_names(self) -> int:
        return 1


def test_a_method_that_hides_the_groups_own_leaves_nothing(pair: RayResourcePool) -> None:
    with pytest.raises(MethodNameClashError, match="worker_names"):
        RayWorkerGroup(pair, Clash)


def test_joining_handles_of_several_groups(pair: RayResourcePool) -> None:
    with RayWorkerGroup(pair, Plain, name_prefix="a") as one, RayWorkerGroup(pair, Plain, name_prefix="b") as other:
        joined = RayWorkerGroup(worker_handles=[other.workers[1], one.workers[0]], ray_cls_with_init=Plain)
        assert joined.world_size == 2
        assert joined.worker_names == ["bPlain_1:0", "aPlain_0:0"]
        assert [row["RANK"] for row in joined.where()] == ["1", "0"]
        joined.close()
        with pytest.raises(GroupUsageError, match="closed"):
            joined.where()
        assert one.lead() == 0
        by_name = RayWorkerGroup(worker_names=["bPlain_0:0"], ray_cls_with_init=Plain)
        assert by_name.call() == [("call", 0, 1)]
        with pytest.raises(GroupUsageError, match="does not own its workers"):
            by_name.stop()
    assert actor_named("aPlain_0:0", "fanfold") is None


def test_one_actor_of_a_recipe_in_a_bundle_or_beside_another(pair: RayResourcePool) -> None:
    recipe = RayClassWithInitArgs(Plain, start=3)
    assert pair.pgs
    group = pair.pgs[1]
    lone = recipe(placement_group=group, placement_group_bundle_idx=0, use_gpu=False)
    with RayWorkerGroup(pair, Plain, name_prefix="beside", worker_env={"CUDA_VISIBLE_DEVICES": "2"}) as workers:
        beside = recipe(sharing_with=workers.workers[1])
        assert ray.get([lone.add.remote(1), beside.add.remote(2)]) == [4, 5]
        devices = beside.__ray_call__.remote(lambda _: __import__("os").environ["CUDA_VISIBLE_DEVICES"])
        where = beside.__ray_call__.remote(lambda _: __import__("ray").get_runtime_context().get_node_id())
        assert ray.get([devices, where]) == ["2", workers.placement()[1].node_id]
    with pytest.raises(KeyError, match="no such model"):
        RayClassWithInitArgs(Fragile, 0, "raise")(group, use_gpu=False)
    for actor in (lone, beside):
        ray.kill(actor)
