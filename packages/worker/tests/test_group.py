from __future__ import annotations

import gc
import pickle
import random
import subprocess
import sys
import weakref
from typing import Any

import pytest
from fanfold.dispatch import Dispatch, Mesh, register
from fanfold.worker import (
    ClassWithInitArgs,
    GroupUsageError,
    InlineBackend,
    MeshError,
    NotPicklableError,
    PoolError,
    ResourcePool,
    WaitTimeoutError,
    Worker,
    WorkerGroup,
    WorkerLostError,
    WorkerStartError,
    create_colocated_worker_cls,
)
from fanfold.worker.starting import as_backend
from fanfold.worker.testing import Fault, FaultyBackend, Probe
from fanfold.worker.threads import ThreadsBackend
from gates import Gated, gate


class HalfMeshed(Worker):
    def __init__(self) -> None:
        super().__init__()
        if self.rank:
            self.register_mesh_rank("half", self.rank)
        self.register_mesh_rank("all", self.rank)
        self.register_mesh_rank("gap", 2 * self.rank)


class Hooked(Worker):
    """Writes down in which order things happen."""

    events: list[Any] = []  # noqa: RUF012  # one list for all ranks of this process is the point

    def __init__(self, failing: str = "") -> None:
        super().__init__()
        self.failing = failing
        self.tell("init")

    def tell(self, what: Any) -> None:
        Hooked.events.append((what, self.rank))
        if what == self.failing:
            raise ValueError(f"{what} of rank {self.rank}")

    def on_start(self) -> None:
        self.tell("start")

    def on_stop(self) -> None:
        self.tell("stop")

    def on_peer_lost(self, ranks: Any) -> None:
        self.tell(("lost", *ranks))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def work(self) -> int:
        return self.rank


@pytest.fixture(autouse=True)
def _no_events() -> None:
    Hooked.events.clear()


def test_backends_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANFOLD_BACKEND", raising=False)
    assert as_backend(None).name == "inline"
    assert [as_backend(name).name for name in ("inline", "threads", "processes")] == ["inline", "threads", "processes"]
    mine = InlineBackend()
    assert as_backend(mine) is mine
    with pytest.raises(GroupUsageError, match="there is no backend 'inlien'; there are inline, threads, processes"):
        as_backend("inlien")
    monkeypatch.setenv("FANFOLD_BACKEND", "threads")
    assert as_backend(None).name == "threads"
    assert as_backend("inline").name == "inline"
    monkeypatch.setenv("FANFOLD_BACKEND", "cluster")
    with pytest.raises(GroupUsageError, match=r"'cluster' \(from FANFOLD_BACKEND\)"):
        as_backend(None)


def test_environment_turns_a_script_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_BACKEND", "threads")
    with WorkerGroup([1], Gated) as group:
        assert group._backend.name == "threads"


def test_pool_without_processes() -> None:
    with pytest.raises(GroupUsageError, match="has no processes"):
        WorkerGroup(ResourcePool(), Gated)
    with pytest.raises(PoolError):
        WorkerGroup([0], Gated)


def test_names_are_unique_and_the_users_random_state_is_not_touched() -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    with WorkerGroup([1], Gated) as first, WorkerGroup([1], Gated) as second:
        assert first.worker_names != second.worker_names
    assert random.random() == expected


def test_class_of_the_group_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    with WorkerGroup([2, 1], Gated, name_prefix="run-") as group:
        assert repr(group) == "<WorkerGroup run-Gated, 3 ranks>"
        assert repr(group[1:]) == "<WorkerGroup run-Gated, 2 ranks [1, 2] of 3>"
        assert (len(group), len(group[0])) == (3, 1)
        assert group.worker_class is Gated
        assert isinstance(group.resource_pool, ResourcePool)
    assert capsys.readouterr() == ("", "")


def test_meshes_are_asked_for_once() -> None:
    with WorkerGroup([3], Probe) as group:
        mesh = group.mesh("backwards")
        assert mesh == Mesh.from_dp_ranks("backwards", [2, 1, 0], [True] * 3)
        assert group.mesh("backwards") is mesh
        assert group[1:].mesh("backwards").ranks == (1, 2)
        assert sorted(group.mesh_names()) == ["backwards", "pairs"]


def test_meshes_that_cannot_be() -> None:
    with WorkerGroup([2], HalfMeshed) as group:
        with pytest.raises(MeshError, match=r"'half' was registered on some ranks only; missing on ranks \[0\]"):
            group.mesh("half")
        with pytest.raises(MeshError, match="'gap'"):
            group.mesh("gap")
        with pytest.raises(
            MeshError, match=r"no rank of .* registered a mesh named 'train'; the meshes .* all, gap, half"
        ):
            group.mesh("train")
        assert group.mesh("all").size() == 2
    with (
        WorkerGroup([1], Gated) as group,
        pytest.raises(MeshError, match=r"no meshes yet\. A worker says self\.register_mesh_rank"),
    ):
        group.mesh("train")


def test_slice_needs_to_know_which_mesh() -> None:
    with WorkerGroup([2], Probe) as group, pytest.raises(GroupUsageError, match="pairs, backwards; say which one"):
        group.slice(dp=0)


def test_index_beyond_the_group() -> None:
    with WorkerGroup([2], Gated) as group:
        with pytest.raises(IndexError, match="has no rank number 2"):
            group[2]
        with pytest.raises(GroupUsageError, match="as this group counts its ranks"):
            group.quick.options(ranks=[5])()


def test_group_that_nobody_holds_ends_its_ranks() -> None:
    group = WorkerGroup([2], Hooked)
    ranks = group._ranks
    part = group[1]
    gone = weakref.ref(group)
    del group
    gc.collect()
    assert gone() is not None
    assert part.work() == [1]
    del part
    assert gone() is None
    assert ranks.closed
    assert [event for event, _ in Hooked.events[-2:]] == ["stop", "stop"]


def test_call_in_progress_holds_its_group() -> None:
    call = WorkerGroup([2], Gated, backend="threads").wait.options(blocking=False)("held")
    gc.collect()
    gate("held").set()
    assert call.result(30) == ["held"] * 2


def test_order_of_life() -> None:
    with WorkerGroup([2], Hooked) as group:
        group.work()
    assert Hooked.events == [("init", 0), ("init", 1), ("start", 0), ("start", 1), ("stop", 1), ("stop", 0)]


def test_failing_on_start_ends_the_group() -> None:
    with pytest.raises(
        WorkerStartError, match=r"on_start of rank 0 \(.*Hooked_0:0\) failed: ValueError: start of rank 0"
    ):
        WorkerGroup([2], ClassWithInitArgs(Hooked, failing="start"))
    assert ("stop", 0) in Hooked.events


def test_failing_on_stop_is_logged_and_the_group_ends(caplog: pytest.LogCaptureFixture) -> None:
    WorkerGroup([2], ClassWithInitArgs(Hooked, failing="stop")).close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "on_stop of" in caplog.messages[0]
    assert "ValueError: stop of rank" in caplog.messages[0]


def test_peers_are_told_of_a_lost_rank() -> None:
    with WorkerGroup([3], Hooked, backend=FaultyBackend(InlineBackend(), [Fault(1, "dies", "work")])) as group:
        with pytest.raises(RuntimeError, match="made to die"):
            group.work()
        with pytest.raises(RuntimeError, match="made to die"):
            group.work()
        assert [event for event in Hooked.events if event[0] == ("lost", 1)] == [(("lost", 1), 0), (("lost", 1), 2)]


def test_start_that_takes_too_long() -> None:
    with pytest.raises(WaitTimeoutError, match=r"the start of 2 ranks of .*Gated was not over within 1e-09 s"):
        WorkerGroup([2], Gated, start_timeout=1e-9)


def test_recover_renews_nothing_that_is_well() -> None:
    with WorkerGroup([2], Hooked) as group:
        assert group.recover() == []
        assert group.recover([1]) == [1]
        assert Hooked.events[-2:] == [("init", 1), ("start", 1)]
        assert group.work() == [0, 1]


def test_recover_needs_a_backend_that_can() -> None:
    backend: Any = FaultyBackend(InlineBackend())
    del backend.renew
    blind = WorkerGroup([1], Hooked, backend=backend)
    with blind, pytest.raises(GroupUsageError, match="the faulty inline backend cannot replace ranks"):
        blind.recover()
    attached: WorkerGroup[Any] = WorkerGroup.__new__(WorkerGroup)
    with WorkerGroup([1], Hooked) as owner:
        attached._adopt(owner._backend, owner._members, Hooked, "x-", owned=False)
        with pytest.raises(GroupUsageError, match="started by others"):
            attached.recover()


def test_attached_group_only_lets_go() -> None:
    with WorkerGroup([2], Hooked) as owner:
        attached: WorkerGroup[Any] = WorkerGroup.__new__(WorkerGroup)
        attached._adopt(owner._backend, owner._members, Hooked, "x-", owned=False)
        assert attached.work() == [0, 1]
        attached.close()
        assert owner.work() == [0, 1]


def test_group_of_a_backend_that_cannot_be_reached_does_not_pickle() -> None:
    message = "only the driver's process reaches ranks of the faulty threads backend"
    with (
        WorkerGroup([1], Gated, backend=FaultyBackend(ThreadsBackend())) as group,
        pytest.raises(NotPicklableError, match=message),
    ):
        pickle.dumps(group)


def test_group_of_threads_is_found_again_until_it_is_gone() -> None:
    with WorkerGroup([2], Gated, backend=ThreadsBackend()) as group:
        sent = pickle.dumps(group)
        copy = pickle.loads(sent)
        assert copy._backend is group._backend
        assert copy.quick(3) == [3, 3]
        assert copy[1].quick(4) == [4]
    del group, copy
    gc.collect()
    with pytest.raises(GroupUsageError, match="its ranks are gone"):
        pickle.loads(sent)


def test_inline_group_in_another_process_is_refused() -> None:
    with WorkerGroup([1], Probe) as group:
        sent = pickle.dumps(group)
        code = f"import pickle\ntry: pickle.loads({sent!r})\nexcept ValueError as e: print(e)"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        assert "can be used in that process only" in done.stdout
    with WorkerGroup([3], create_colocated_worker_cls({"actor": Probe})) as group:
        part = pickle.loads(pickle.dumps(group.actor[1:]))
        assert part.who() == [(1, 3), (2, 3)]
        assert (part.ranks, part.world_size) == ((1, 2), 2)
        assert pickle.loads(pickle.dumps(group)).actor[0].who() == [(0, 3)]
    with pytest.raises(WorkerLostError, match="was closed"):
        part.who()


def test_interpreter_end_closes_what_is_open() -> None:
    code = (
        "from fanfold.worker import Worker, WorkerGroup\n"
        "class Loud(Worker):\n"
        "    def on_stop(self): print('stopped', self.rank)\n"
        "group = WorkerGroup([2], Loud)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "stopped 1\nstopped 0\n"


def test_ten_thousand_calls_leave_memory_where_it_was() -> None:
    with WorkerGroup([2], Gated) as group:
        for number in range(200):
            group.quick(number)
        gc.collect()
        before = len(gc.get_objects())
        for number in range(10_000):
            group.quick(number)
        gc.collect()
        assert len(gc.get_objects()) <= before + 50


def test_execute_is_given_the_worker_first() -> None:
    with WorkerGroup([2], ClassWithInitArgs(Gated, "tag")) as group:
        assert group.execute(lambda worker, more: worker.tag + more, "ged") == ["tagged", "tagged"]


def test_typed_checks_the_class() -> None:
    class GatedGroup(WorkerGroup[Gated]):
        registered_methods = ("quick", "wait", "fail")

        def quick(self, value: Any = None) -> list[Any]:
            raise NotImplementedError

    with WorkerGroup([1], Gated) as group, pytest.raises(GroupUsageError, match=r"lacks \['execute_func_rank_zero'"):
        group.typed(GatedGroup)
