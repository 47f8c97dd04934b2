"""Somebody dies at some moment: each combination ends as its cell of the table says, and leaves what was there before.

| victim    | while it starts          | in a call         | between calls           | while it is closed |
|-----------|--------------------------|-------------------|-------------------------|--------------------|
| rank      | WorkerStartError         | WorkerLostError   | WorkerLostError         | nothing            |
| custodian | the group works          | nothing           | found by its ranks      | nothing            |
| driver    | nothing is left          | nothing is left   | nothing is left         | nothing is left    |
| node      | WorkerStartError         | WorkerLostError   | WorkerLostError         | nothing            |

`FANFOLD_CHAOS_ROUNDS` says how many random rounds are played after the table.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import drivers
import pytest
import ray
from cluster_state import inventory, named, until
from fanfold.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, attach, stop_group
from fanfold.ray.custodian import custodian_of
from fanfold.worker import WorkerLostError, WorkerStartError
from sample_workers import Plain, Slow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ray.cluster_utils import Cluster

ROUNDS = int(os.environ.get("FANFOLD_CHAOS_ROUNDS", "4"))
SOON = 20.0  # seconds for an error to arrive on a machine that does other things too


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON


def pool(**options: Any) -> RayResourcePool:
    return RayResourcePool([1, 1], cpus_per_process=0.5, **options)


@contextmanager
def group_of_two(cls: Any = Plain, **options: Any) -> Iterator[RayWorkerGroup]:
    with pool() as places:
        group = RayWorkerGroup(places, cls, name_prefix="chaos", **options)
        pids = [place.pid for place in group.placement()]
        yield group
        with soon():
            group.close()
    until(lambda: not any(lives(pid) for pid in pids))
    assert named("chaos") == ([], [])


def killed_later(pid: Callable[[], int], seconds: float) -> threading.Thread:
    def strike() -> None:
        time.sleep(seconds)
        kill(pid())

    thread = threading.Thread(target=strike)
    thread.start()
    return thread


@pytest.fixture
def pids(tmp_path: Path) -> Callable[[int], int]:
    """Gives the process of a rank that has begun to build its worker."""

    def of(rank: int) -> int:
        until((tmp_path / str(rank)).exists)
        return int((tmp_path / str(rank)).read_text())

    return of


# A rank


def test_a_rank_dies_while_it_starts(cluster: Cluster, tmp_path: Path, pids: Callable[[int], int]) -> None:
    strike = killed_later(lambda: pids(1), 0)
    with pool() as places, pytest.raises(WorkerStartError, match=r"rank 1 \(chaosSlow_1:0, .*is gone"):
        RayWorkerGroup(places, RayClassWithInitArgs(Slow, str(tmp_path), 60.0), name_prefix="chaos")
    strike.join()
    assert named("chaos") == ([], [])


def test_a_rank_dies_in_a_call(cluster: Cluster) -> None:
    with group_of_two() as group:
        strike = killed_later(lambda: group.placement()[1].pid, 0.3)
        with soon(), pytest.raises(WorkerLostError, match="rank 1"):
            group.fail_on(-1, "none", others_sleep=60.0)
        strike.join()


def test_a_rank_dies_between_calls(cluster: Cluster) -> None:
    with group_of_two() as group:
        kill(group.placement()[0].pid)
        until(lambda: named("chaos")[1] == ["chaosPlain_1:0"])
        with soon(), pytest.raises(WorkerLostError, match="rank 0"):
            group.lead()


def test_a_rank_dies_while_the_group_is_closed(cluster: Cluster) -> None:
    with group_of_two() as group:
        kill(group.placement()[1].pid)


def test_a_lost_rank_is_recovered(cluster: Cluster) -> None:
    with group_of_two() as group:
        group.add(1)
        first = group.placement()[1].pid
        kill(first)
        until(lambda: not lives(first))
        until(lambda: group.recover() == [1])
        assert group.add(1) == [2, 1]
        assert [row["RANK"] for row in group.where()] == ["0", "1"]
        assert len({row["MASTER_PORT"] for row in group.where()}) == 1
        kill(group.placement()[1].pid)


# A custodian


def custodian_pid(name: str) -> int:
    custodian: Any = custodian_of(name, "fanfold")
    return int(ray.get(custodian.__ray_call__.remote(lambda _: os.getpid()), timeout=30))


def test_a_custodian_dies_between_calls(cluster: Cluster) -> None:
    group = RayWorkerGroup(pool(detached=True), Plain, name_prefix="chaos", detached=True)
    kill(custodian_pid("chaos"))
    until(lambda: "chaos.fanfold" not in named("chaos")[1])
    assert group.lead() == 0
    found = RayWorkerGroup.from_detached("chaos", ray_cls_with_init=Plain)
    assert found.add(1) == [1, 1]
    with soon():
        assert stop_group("chaos")
    assert named("chaos") == ([], [])


def test_a_custodian_dies_while_the_group_is_stopped(cluster: Cluster) -> None:
    group = RayWorkerGroup(pool(detached=True), Plain, name_prefix="chaos", detached=True)
    victim = custodian_pid("chaos")
    strike = killed_later(lambda: victim, 0.0)
    group.stop()
    strike.join()
    until(lambda: not stop_group("chaos") and named("chaos") == ([], []))


# A driver

DRIVER = """
import time
pool = RayResourcePool([1, 1], cpus_per_process=0.5, detached={detached})
say("connected")
group = RayWorkerGroup(pool, Plain, name_prefix="chaos", detached={detached})
group.fail_on(-1, "none", others_sleep=1.0)
group.stop()
time.sleep(60)
"""


@pytest.mark.parametrize("seconds", [0.3, 1.5, 4.0])
def test_a_driver_dies_at_some_moment(cluster: Cluster, address: str, seconds: float) -> None:
    before = inventory()
    driver = drivers.begin(DRIVER.format(detached=False), address)
    time.sleep(seconds)
    kill(driver.pid)
    driver.communicate(timeout=30)
    until(lambda: inventory() == before)


def test_a_driver_of_a_detached_group_dies_at_some_moment(cluster: Cluster, address: str) -> None:
    driver = drivers.begin(DRIVER.format(detached=True), address)
    time.sleep(1.0)
    kill(driver.pid)
    driver.communicate(timeout=30)
    until(lambda: named("chaos") == ([], []) or _is_whole("chaos"))
    stop_group("chaos")
    assert named("chaos") == ([], [])


def _is_whole(name: str) -> bool:
    with suppress(Exception):
        return bool(attach(name).lead() == 0)
    return False


# A node


def test_a_node_dies_in_a_call(cluster: Cluster) -> None:
    node = cluster.add_node(num_cpus=1, resources={"accelerator_type:DOOMED": 1.0})
    until(lambda: "accelerator_type:DOOMED" in ray.cluster_resources())
    with RayResourcePool([1], cpus_per_process=0.5, accelerator_type="DOOMED") as places:
        group = RayWorkerGroup(places, Plain, name_prefix="chaos")
        call = group.later(60.0)
        cluster.remove_node(node, allow_graceful=False)
        with pytest.raises(WorkerLostError, match="rank 0"):
            call.result(90)
        with soon():
            group.close()
    until(lambda: "accelerator_type:DOOMED" not in ray.cluster_resources())
    until(lambda: named("chaos") == ([], []))


# At random


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_rank_dies_at_a_random_moment(
    cluster: Cluster, tmp_path: Path, pids: Callable[[int], int], seed: int
) -> None:
    chance = random.Random(seed)
    victim, seconds = chance.randrange(2), chance.uniform(0.0, 2.0)
    before = inventory()
    strike = killed_later(lambda: pids(victim), seconds)
    with pool() as places:
        with suppress(WorkerStartError, WorkerLostError):
            recipe = RayClassWithInitArgs(Slow, str(tmp_path), 0.5)
            with RayWorkerGroup(places, recipe, name_prefix="chaos") as group:
                for _ in range(200):
                    group.ping()
                    time.sleep(0.01)
        strike.join()
    assert inventory() == before
    until(lambda: not any(lives(pids(rank)) for rank in range(2)))
