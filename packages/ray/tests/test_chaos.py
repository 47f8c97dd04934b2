"""Somebody dies at some moment: each combination ends as its cell of the table says, and leaves what was there before.

| victim    | while it starts  | in a call       | while one attaches  | between calls       | while it is closed |
|-----------|------------------|-----------------|---------------------|---------------------|--------------------|
| rank      | WorkerStartError | WorkerLostError | BrokenGroupError    | WorkerLostError     | nothing            |
| custodian | the group works  | the call goes on| found by its ranks  | found by its ranks  | nothing            |
| driver    | nothing is left  | nothing is left | the group stays     | nothing is left     | nothing is left    |
| node      | WorkerStartError | WorkerLostError | BrokenGroupError    | WorkerLostError     | nothing            |

After each, placement groups, actors' names, bytes of the object stores and processes are what they were before it.
`FANFOLD_CHAOS_ROUNDS` says how many random rounds are played after the table.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import drivers
import pytest
import ray
from cluster_state import lives, named, residue, until
from fanfold.ray import BrokenGroupError, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, attach, stop_group
from fanfold.ray.custodian import custodian_of
from fanfold.worker import WorkerError, WorkerLostError, WorkerStartError
from ray.exceptions import RayActorError
from sample_workers import Plain, Slow

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ray.cluster_utils import Cluster

ROUNDS = int(os.environ.get("FANFOLD_CHAOS_ROUNDS", "20"))
SOON = 20.0  # seconds for an error to arrive on a machine that does other things too


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    gc.collect()
    before = residue()
    yield
    gc.collect()
    until(lambda: residue().holds_nothing_beyond(before))


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON


def pool(ranks: int = 2, **options: Any) -> RayResourcePool:
    return RayResourcePool([1] * ranks, cpus_per_process=0.5, **options)


@contextmanager
def group_of_two(cls: Any = Plain, **options: Any) -> Iterator[RayWorkerGroup[Any]]:
    with pool() as places:
        group: RayWorkerGroup[Any] = RayWorkerGroup(places, cls, name_prefix="chaos", **options)
        yield group
        with soon():
            group.close()


@contextmanager
def detached_group(places: RayResourcePool | None = None, cls: Any = Plain) -> Iterator[RayWorkerGroup[Any]]:
    yield RayWorkerGroup(places or pool(detached=True), cls, name_prefix="chaos", detached=True)
    with soon():
        stop_group("chaos")
    assert named("chaos") == ([], [])


def later(
    action: Callable[[], object], seconds: float = 0.0, after: Callable[[], object] = lambda: None
) -> threading.Thread:
    def act() -> None:
        after()
        time.sleep(seconds)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.fixture
def building(tmp_path: Path) -> Callable[[int], int]:
    """Gives the process of a rank as soon as it has begun to build its worker."""

    def of(rank: int) -> int:
        until((tmp_path / str(rank)).exists)
        return int((tmp_path / str(rank)).read_text())

    return of


def slow(folder: Path, seconds: float) -> RayClassWithInitArgs:
    return RayClassWithInitArgs(Slow, str(folder), seconds)


def test_what_is_looked_at_is_seen() -> None:
    before = residue()
    kept = ray.put(b"x" * 20_000_000)
    until(lambda: residue().store_bytes >= before.store_bytes + 20_000_000)
    with group_of_two() as group:
        pids = {place.pid for place in group.placement()}
        assert pids <= residue().processes - before.processes
        assert not residue().holds_nothing_beyond(before)
    del kept


# A rank


def test_a_rank_dies_while_it_starts(tmp_path: Path, building: Callable[[int], int]) -> None:
    strike = later(lambda: kill(building(1)))
    with pool() as places, pytest.raises(WorkerStartError, match=r"rank 1 \(chaosSlow_1:0, .*is gone"):
        RayWorkerGroup(places, slow(tmp_path, 60.0), name_prefix="chaos")
    strike.join()
    assert named("chaos") == ([], [])


def test_a_rank_dies_in_a_call() -> None:
    with group_of_two() as group:
        victim = group.placement()[1].pid
        strike = later(lambda: kill(victim), 0.3)
        with soon(), pytest.raises(WorkerLostError, match="rank 1"):
            group.fail_on(-1, "none", others_sleep=60.0)
        strike.join()


def test_a_rank_dies_while_one_attaches() -> None:
    with detached_group() as group:
        kill(group.placement()[1].pid)
        until(lambda: "chaosPlain_1:0" not in named("chaos")[1])
        with soon(), pytest.raises(BrokenGroupError, match=r"has lost rank 1 \(chaosPlain_1:0.*1 of 2 ranks live"):
            attach("chaos")


def test_a_rank_dies_between_calls() -> None:
    with group_of_two() as group:
        kill(group.placement()[0].pid)
        until(lambda: named("chaos")[1] == ["chaosPlain_1:0"])
        with soon(), pytest.raises(WorkerLostError, match="rank 0"):
            group.lead()


def test_a_rank_dies_while_the_group_is_closed() -> None:
    with group_of_two() as group:
        kill(group.placement()[1].pid)


def test_a_lost_rank_is_recovered() -> None:
    with group_of_two() as group:
        group.add(1)
        first = group.placement()[1].pid
        kill(first)
        until(lambda: not lives(first))
        until(lambda: group.recover() == [1])
        assert group.add(1) == [2, 1]
        assert [row["RANK"] for row in group.where()] == ["0", "1"]
        assert len({row["MASTER_PORT"] for row in group.where()}) == 1


# A custodian


def custodian_pid() -> int:
    custodian: Any = custodian_of("chaos", "fanfold")
    return int(ray.get(custodian.__ray_call__.remote(lambda _: os.getpid()), timeout=60))


def node_of_custodian() -> str:
    custodian: Any = custodian_of("chaos", "fanfold")
    where = custodian.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
    return str(ray.get(where, timeout=60))


def end_custodian() -> None:
    kill(custodian_pid())
    until(lambda: "chaos.fanfold" not in named("chaos")[1])


def test_a_custodian_dies_while_the_group_starts(tmp_path: Path, building: Callable[[int], int]) -> None:
    strike = later(end_custodian, after=lambda: building(1))
    with detached_group(cls=slow(tmp_path, 4.0)) as group:
        strike.join()
        assert group.ping() == [0, 1]
        assert attach("chaos").ping() == [0, 1]


def test_a_custodian_dies_in_a_call() -> None:
    with detached_group() as group:
        call = group.later(1.0)
        end_custodian()
        assert call.result() == [0, 1]


def test_a_custodian_dies_while_one_attaches() -> None:
    with detached_group():
        kill(custodian_pid())
        with soon(), suppress(BrokenGroupError):  # where it dies before it has said which class this is
            assert attach("chaos").add(1) == [1, 1]
        assert RayWorkerGroup.from_detached("chaos", ray_cls_with_init=Plain).lead() == 0


def test_a_custodian_dies_between_calls() -> None:
    with detached_group() as group:
        end_custodian()
        assert group.lead() == 0
        assert RayWorkerGroup.from_detached("chaos", ray_cls_with_init=Plain).add(1) == [1, 1]
        with pytest.raises(BrokenGroupError, match=r"custodian of group 'chaos' is gone.*ray_cls_with_init"):
            attach("chaos")


def test_a_custodian_dies_while_the_group_is_stopped() -> None:
    group: RayWorkerGroup[Any] = RayWorkerGroup(pool(detached=True), Plain, name_prefix="chaos", detached=True)
    victim = custodian_pid()
    strike = later(lambda: kill(victim))
    group.stop()
    strike.join()
    until(lambda: not stop_group("chaos") and named("chaos") == ([], []))


# A driver

DRIVER = """
import time
pool = RayResourcePool([1, 1], cpus_per_process=0.5, detached={detached})
say("starts")
group = RayWorkerGroup(pool, {recipe}, name_prefix="chaos", detached={detached})
say("calls")
{call}
say("waits")
time.sleep({wait})
say("stops")
group.stop()
pool.close()
time.sleep(60)
"""

MOMENTS: dict[str, tuple[str, dict[str, object]]] = {
    "start": ("starts", {}),
    "call": ("calls", {"call": 'group.fail_on(-1, "none", others_sleep=60.0)'}),
    "between": ("waits", {"wait": 60}),
    "close": ("stops", {}),
}


def until_said(driver: subprocess.Popen[str], word: str) -> None:
    assert driver.stdout is not None
    while f'"{word}"' not in (line := driver.stdout.readline()):
        assert line, driver.communicate(timeout=30)[1]


def killed_driver(
    moment: str, address: str, how: int = signal.SIGKILL, *, detached: bool = False, after: float = 0.2
) -> subprocess.Popen[str]:
    word, parts = MOMENTS[moment]
    body = DRIVER.format(**{"detached": detached, "recipe": "Plain", "call": "", "wait": 0} | parts)
    driver = drivers.begin("say('connected')\n" + body, address)
    until_said(driver, word)
    time.sleep(after)
    driver.send_signal(how)
    driver.communicate(timeout=60)
    return driver


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_driver_dies(address: str, moment: str) -> None:
    killed_driver(moment, address)
    until(lambda: named("chaos") == ([], []))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_driver_of_a_detached_group_dies(address: str, moment: str) -> None:
    killed_driver(moment, address, detached=True)
    until(lambda: named("chaos") == ([], []) or _is_whole())
    stop_group("chaos")
    assert named("chaos") == ([], [])


def _is_whole() -> bool:
    with suppress(WorkerError):
        return bool(attach("chaos").world_size == 2)
    return False


def test_a_driver_dies_between_the_end_of_the_ranks_and_that_of_the_custodian() -> None:
    group: RayWorkerGroup[Any] = RayWorkerGroup(pool(detached=True), Plain, name_prefix="chaos", detached=True)
    custodian: Any = custodian_of("chaos", "fanfold")
    assert ray.get(custodian.stop.remote(20.0), timeout=60) == []  # what stop() asks first; nobody asks for the rest
    del custodian
    until(lambda: named("chaos") == ([], []))
    group.stop()


@pytest.mark.parametrize("moment", MOMENTS)
def test_control_c_ends_a_driver_and_all_that_it_made(address: str, moment: str) -> None:
    driver = killed_driver(moment, address, signal.SIGINT)
    assert driver.returncode != 0
    until(lambda: named("chaos") == ([], []), 30.0)


def test_a_driver_that_attached_dies_in_a_call(address: str) -> None:
    with detached_group() as group:
        client = drivers.begin(
            'found = attach("chaos")\nsay("calls")\nfound.fail_on(-1, "none", others_sleep=2.0)\n', address
        )
        time.sleep(0.3)
        kill(client.pid)
        client.communicate(timeout=30)
        assert group.add(1) == [1, 1]
        assert attach("chaos").lead() == 0


# A node


@pytest.fixture
def doomed(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """A node of its own kind, and what ends it."""
    node = cluster.add_node(num_cpus=1, resources={"accelerator_type:DOOMED": 1.0})
    until(lambda: "accelerator_type:DOOMED" in ray.cluster_resources())
    left = [node]

    def end() -> None:
        if left:
            cluster.remove_node(left.pop(), allow_graceful=False)

    yield end
    end()
    until(lambda: "accelerator_type:DOOMED" not in ray.cluster_resources())


def on_doomed(*, detached: bool = False) -> RayResourcePool:
    return pool(1, accelerator_type="DOOMED", detached=detached)


def test_a_node_dies_while_a_group_starts(
    doomed: Callable[[], None], tmp_path: Path, building: Callable[[int], int]
) -> None:
    strike = later(doomed, after=lambda: building(0))
    with on_doomed() as places, pytest.raises(WorkerStartError, match=r"rank 0 \(chaosSlow_0:0"):
        RayWorkerGroup(places, slow(tmp_path, 60.0), name_prefix="chaos")
    strike.join()


def test_a_node_dies_in_a_call(doomed: Callable[[], None]) -> None:
    with on_doomed() as places:
        group: RayWorkerGroup[Any] = RayWorkerGroup(places, Plain, name_prefix="chaos")
        call = group.later(60.0)
        doomed()
        with pytest.raises(WorkerLostError, match="rank 0"):
            call.result(90)
        with soon():
            group.close()


def test_a_node_dies_while_one_attaches(doomed: Callable[[], None]) -> None:
    with detached_group(on_doomed(detached=True)):
        assert node_of_custodian() in {
            node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"]
        }
        doomed()
        until(lambda: "chaosPlain_0:0" not in named("chaos")[1])
        with soon(), pytest.raises(BrokenGroupError, match="has lost rank 0"):
            attach("chaos")


def test_a_node_dies_between_calls(doomed: Callable[[], None]) -> None:
    with on_doomed() as places, RayWorkerGroup(places, Plain, name_prefix="chaos") as group:
        assert group.lead() == 0
        doomed()
        with pytest.raises(WorkerLostError, match="rank 0"):  # a worker outlives its node's raylet for a moment
            until(lambda: group.lead() != 0)


def test_a_node_dies_while_the_group_is_closed(doomed: Callable[[], None]) -> None:
    with on_doomed() as places:
        group: RayWorkerGroup[Any] = RayWorkerGroup(places, Plain, name_prefix="chaos")
        doomed()
        with soon():
            group.close()


# At random


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_somebody_dies_at_a_random_moment(
    address: str, tmp_path: Path, building: Callable[[int], int], seed: int
) -> None:
    chance = random.Random(seed)
    victim, seconds = chance.choice(["rank", "rank", "custodian", "driver"]), chance.uniform(0.0, 2.5)
    if victim == "driver":
        moment = chance.choice([*MOMENTS])
        killed_driver(moment, address, detached=chance.random() < 0.5, after=seconds)
        until(lambda: named("chaos") == ([], []) or _is_whole())
    elif victim == "rank":
        rank = chance.randrange(2)
        strike = later(lambda: kill(building(rank)), seconds)
        _play(tmp_path, detached=False)
        strike.join()
    else:
        strike = later(_try_to_end_custodian, seconds, after=lambda: building(0))
        _play(tmp_path, detached=True)
        strike.join()
    until(lambda: not stop_group("chaos") and named("chaos") == ([], []))


def _play(folder: Path, *, detached: bool) -> None:
    """Start, call, attach and close; each may fail by a typed error, and nothing may hang."""
    with pool(detached=detached) as places, suppress(WorkerError):
        group: RayWorkerGroup[Any] = RayWorkerGroup(
            places, slow(folder, 0.5), name_prefix="chaos", detached=detached, start_timeout=60
        )
        try:
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                group.ping()
                if detached:
                    attach("chaos").ping()
        finally:
            group.stop()


def _try_to_end_custodian() -> None:
    with suppress(AttributeError, RayActorError):  # the group is gone before it was struck
        kill(custodian_pid())
