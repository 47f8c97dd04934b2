from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import drivers
import pytest
import ray
from cluster_state import inventory, named, until
from fanfold.ray import (
    BrokenGroupError,
    GroupStartingError,
    NameTakenError,
    NoClusterError,
    NoSuchGroupError,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    attach,
    list_groups,
    stop_group,
)
from fanfold.ray.custodian import custodian_of
from fanfold.worker import GroupUsageError, WorkerStartError
from sample_workers import Fragile, Plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.cluster_utils import Cluster


def start(name: str, **options: Any) -> RayWorkerGroup[Any]:
    pool = RayResourcePool([1, 1], cpus_per_process=0.5, detached=True)
    return RayWorkerGroup(pool, RayClassWithInitArgs(Plain, 5), name_prefix=name, detached=True, **options)


@pytest.fixture
def trainer(cluster: Cluster) -> Iterator[RayWorkerGroup[Any]]:
    group = start("trainer")
    yield group
    stop_group("trainer")


SERVER = """
pool = RayResourcePool([1, 1], cpus_per_process=0.5, detached=True)
group = RayWorkerGroup(pool, RayClassWithInitArgs(Plain, start=7), name_prefix="served", detached=True)
group.register_meshes()
group.mesh("halves")
say(group.worker_names)
"""


def test_workers_outlive_their_driver_and_are_found_by_name(cluster: Cluster, address: str) -> None:
    assert drivers.run(SERVER, address) == [["servedPlain_0:0", "servedPlain_1:0"]]
    try:
        group = attach("served")
        assert group.worker_class is Plain
        assert group.add(1) == [8, 8]
        assert group._ranks.meshes[""]["halves"] == group.mesh("halves")
        assert isinstance(group.resource_pool, RayResourcePool)
        assert group.resource_pool.store == [1, 1]
        group.close()
        again = drivers.run('say(attach("served").add(1))', address)
        assert again == [[9, 9]]
    finally:
        assert stop_group("served")
    assert not stop_group("served")
    assert named("served") == ([], [])


def test_closing_lets_go_and_stopping_ends(trainer: RayWorkerGroup[Any]) -> None:
    trainer.close()
    with pytest.raises(GroupUsageError, match="closed"):
        trainer.lead()
    attached = attach("trainer")
    assert attached.lead() == 0
    attached.stop()
    attached.stop()
    assert named("trainer") == ([], [])


def test_a_second_group_of_the_name_is_refused_and_told_about_the_first(trainer: RayWorkerGroup[Any]) -> None:
    with pytest.raises(NameTakenError) as refused:
        start("trainer")
    message = str(refused.value)
    assert "a detached group 'trainer' lives already in namespace 'fanfold': ready, 2 ranks" in message
    assert "stop_group('trainer')" in message
    assert trainer.lead() == 0
    ray.kill(trainer.workers[1])
    until(lambda: "trainerPlain_1:0" not in named("trainer")[1])
    with pytest.raises(NameTakenError, match="but trainerPlain_1:0 is gone"):
        start("trainer")


def test_attaching_says_what_is_wrong(trainer: RayWorkerGroup[Any], address: str) -> None:
    with pytest.raises(NoSuchGroupError, match=r"no group 'trianer'.*groups in this cluster: 'trainer' in 'fanfold'"):
        attach("trianer")
    with pytest.raises(NoSuchGroupError, match=r"no group 'trainer' lives in namespace 'other', but .* 'fanfold'"):
        attach("trainer", namespace="other")
    with pytest.raises(NoSuchGroupError, match="but there is one in 'fanfold'"):
        stop_group("trainer", namespace="other")
    with pytest.raises(NoSuchGroupError, match="no living worker named trainerPlain_9:9"):
        RayWorkerGroup.from_detached(worker_names=["trainerPlain_9:9"], ray_cls_with_init=Plain)
    with pytest.raises(GroupUsageError, match="needs the group's name_prefix, or worker_names, or worker_handles"):
        RayWorkerGroup.from_detached(ray_cls_with_init=Plain)
    pid = trainer._members[1].pid
    ray.kill(trainer.workers[1])
    until(lambda: "trainerPlain_1:0" not in named("trainer")[1])
    with pytest.raises(BrokenGroupError, match=rf"rank 1 \(trainerPlain_1:0, node .*, pid {pid}\); 1 of 2 ranks live"):
        attach("trainer")


def test_attaching_by_names_and_handles(trainer: RayWorkerGroup[Any]) -> None:
    by_name = RayWorkerGroup.from_detached(worker_names=trainer.worker_names[::-1], ray_cls_with_init=Plain)
    assert [row["RANK"] for row in by_name.where()] == ["1", "0"]
    by_handle = RayWorkerGroup.from_detached(worker_handles=trainer.workers, ray_cls_with_init=Plain)
    assert by_handle.worker_names == trainer.worker_names
    assert by_handle.add(0) == [5, 5]
    with pytest.raises(GroupUsageError, match="needs its worker class"):
        RayWorkerGroup.from_detached(worker_names=trainer.worker_names)


def test_another_class_of_that_name_is_refused_unless_forced(trainer: RayWorkerGroup[Any]) -> None:
    with pytest.raises(BrokenGroupError, match=r"Fragile registers other methods or parameters here than .*Plain"):
        RayWorkerGroup.from_detached("trainer", ray_cls_with_init=Fragile)
    forced = RayWorkerGroup.from_detached("trainer", ray_cls_with_init=Fragile, force=True)
    assert forced.world_size == 2


def test_a_dead_custodian_is_made_up_for_by_names(trainer: RayWorkerGroup[Any]) -> None:
    custodian = custodian_of("trainer", "fanfold")
    assert custodian is not None
    ray.kill(custodian)
    until(lambda: custodian_of("trainer", "fanfold") is None)
    with pytest.raises(BrokenGroupError, match="give it: from_detached"):
        attach("trainer")
    found = RayWorkerGroup.from_detached("trainer", ray_cls_with_init=Plain)
    assert found.add(0) == [5, 5]
    ray.kill(trainer.workers[0])
    until(lambda: named("trainer")[1] == ["trainerPlain_1:0"])
    with pytest.raises(BrokenGroupError, match="has lost rank 0; 1 of 2 ranks live"):
        RayWorkerGroup.from_detached("trainer", ray_cls_with_init=Plain)
    assert stop_group("trainer")
    assert named("trainer") == ([], [])


def test_groups_are_listed(trainer: RayWorkerGroup[Any]) -> None:
    (state,) = [state for state in list_groups() if state.group == "trainer"]
    assert (state.group, state.namespace, state.state) == ("trainer", "fanfold", "ready")
    assert list(state.worker_names) == trainer.worker_names
    assert state.age >= state.silence >= 0


def test_a_failed_start_leaves_nothing_and_the_name_free(cluster: Cluster) -> None:
    pool = RayResourcePool([1, 1], cpus_per_process=0.5, detached=True)
    with pytest.raises(WorkerStartError, match="no such model"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Fragile, 1, "raise"), name_prefix="failed", detached=True)
    assert named("failed") == ([], [])
    group = RayWorkerGroup(pool, Plain, name_prefix="failed", detached=True)
    assert group.lead() == 0
    group.stop()


def test_a_pool_stays_while_another_group_lives_in_it(trainer: RayWorkerGroup[Any]) -> None:
    assert isinstance(trainer.resource_pool, RayResourcePool)
    other = RayWorkerGroup(trainer.resource_pool, Plain, name_prefix="other", detached=True)
    try:
        stop_group("trainer")
        assert other.lead() == 0
        assert len(named("trainer")[0]) == 2
    finally:
        other.stop()
    assert named("trainer") == ([], [])


def test_a_group_that_nobody_needs_ends_itself(cluster: Cluster) -> None:
    group = start("kept", keep_for="8s")
    time.sleep(10)
    assert group.lead() == 0
    group.close()
    until(lambda: named("kept") == ([], []))


def test_a_driver_that_dies_while_it_starts_leaves_nothing(cluster: Cluster, address: str) -> None:
    body = """
    import threading
    pool = RayResourcePool([1, 1], cpus_per_process=0.5, detached=True)
    recipe = RayClassWithInitArgs(Fragile, 1, "hang")
    starting = threading.Thread(
        target=lambda: RayWorkerGroup(pool, recipe, name_prefix="orphan", detached=True), daemon=True
    )
    starting.start()
    while sum(name.startswith("orphan") for name in ray.util.list_named_actors()) < 3:
        pass
    say("starting")
    starting.join()
    """
    driver = drivers.begin(body, address)
    with pytest.raises(GroupStartingError, match="'orphan' is still starting"):
        attach("orphan")
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=30)
    until(lambda: named("orphan") == ([], []))


def test_a_group_that_is_not_detached_ends_with_its_driver(cluster: Cluster, address: str) -> None:
    body = """
    group = RayWorkerGroup(RayResourcePool([1, 1], cpus_per_process=0.5), Plain, name_prefix="mortal")
    say(group.lead())
    input()
    """
    before = inventory()[0]
    driver = drivers.begin(body, address)
    assert named("mortal")[1] == ["mortalPlain_0:0", "mortalPlain_1:0"]
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=30)
    until(lambda: named("mortal")[1] == [] and inventory()[0] == before)


def test_without_a_cluster_everything_says_so() -> None:
    if ray.is_initialized():
        pytest.skip("this process is connected already; the order of tests puts this one first")
    for action in (list_groups, lambda: attach("x"), lambda: stop_group("x"), lambda: RayWorkerGroup([1], Plain)):
        with pytest.raises(NoClusterError, match=r"not connected.*ray.init\(address='auto'\)"):
            action()
    with pytest.raises(NoClusterError, match="placing a resource pool needs a Ray cluster"):
        RayResourcePool([1]).get_placement_groups()
    assert not ray.is_initialized()
