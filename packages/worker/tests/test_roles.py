from __future__ import annotations

import pickle
from typing import Any

import pytest
from fanfold.dispatch import Dispatch, PerRank, Rows, register
from fanfold.worker import (
    ClassWithInitArgs,
    GroupUsageError,
    MethodNameClashError,
    RecipeError,
    Worker,
    WorkerGroup,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
)
from fanfold.worker.roles import RoleCall, roles_of
from gates import Gated, gate
from hypothesis import given
from hypothesis import strategies as st

EVENTS: list[Any] = []


class Actor(Worker):
    def __init__(self, step: int = 1, tag: Any = None) -> None:
        super().__init__()
        self.step, self.tag, self.weights = step, tag, 0
        self.register_mesh_rank("train", self.rank)

    def on_start(self) -> None:
        EVENTS.append("actor starts")

    def on_stop(self) -> None:
        EVENTS.append("actor stops")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update(self, times: int = 1) -> int:
        self.weights += times * self.step
        return self.weights

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def add(self, rows: Rows[int]) -> Rows[int]:
        return Rows(row + self.weights for row in rows)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def tagged(self) -> Any:
        return self.tag

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def rollout_step(self) -> str:
        return "rollout_step of actor"


class Rollout(Worker):
    """A name that begins like another role's, and a method that begins like a role."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = self.get_fused_worker_by_name("actor")
        self.register_mesh_rank("train", self.world_size - 1 - self.rank)

    def on_start(self) -> None:
        EVENTS.append("rollout starts")

    def on_stop(self) -> None:
        EVENTS.append("rollout stops")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step(self) -> str:
        return "step of actor_rollout"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sees(self) -> tuple[bool, int]:
        return self.seen is self.get_fused_worker_by_name("actor"), self.seen.weights

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def step_async(self) -> int:
        return self.rank


class Bare:
    """No `Worker`, and slots that leave no room for siblings' names."""

    def __init__(self, start: int) -> None:
        self.start = start

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def get(self) -> int:
        return self.start


ROLES: dict[str, ClassWithInitArgs | type] = {"actor": ClassWithInitArgs(Actor, step=5), "actor_rollout": Rollout}


@pytest.fixture(name="group", params=["inline", "threads"])
def _group(request: pytest.FixtureRequest) -> Any:
    EVENTS.clear()
    with WorkerGroup([2], create_colocated_worker_cls(ROLES), backend=request.param) as group:
        yield group


def test_each_role_has_its_own_methods(group: WorkerGroup[Any]) -> None:
    assert group.actor.rollout_step() == ["rollout_step of actor"] * 2
    assert group.actor_rollout.step() == ["step of actor_rollout"] * 2
    assert group.actor_rollout.step_async() == [0, 1]
    assert list(group.roles) == ["actor", "actor_rollout"]
    assert {"actor", "actor_rollout"} <= set(dir(group))
    assert group.actor.worker_class is Actor
    assert repr(group.actor[1]).endswith("FusedWorker_actor_actor_rollout.actor, 1 ranks [1] of 2>")
    with pytest.raises(AttributeError, match="it registers actor, actor_rollout, execute"):
        group.update()
    with pytest.raises(AttributeError, match=r"did you mean 'actor\.update'"):
        group.actor_update()


def test_roles_see_each_other(group: WorkerGroup[Any]) -> None:
    group.actor.update(3)
    assert group.actor_rollout.sees() == [(True, 15), (True, 15)]


def test_roles_have_meshes_of_their_own(group: WorkerGroup[Any]) -> None:
    assert group.actor.mesh("train").place() == {0: 0, 1: 1}
    assert group.actor_rollout.mesh("train").place() == {0: 1, 1: 0}
    with pytest.raises(ValueError, match="no meshes yet"):
        group.mesh("train")


def test_functions_are_given_the_worker_of_the_role(group: WorkerGroup[Any]) -> None:
    assert group.actor.execute(lambda worker: type(worker).__name__) == ["Actor", "Actor"]
    assert group.execute(lambda worker: worker.actor.step) == [5, 5]
    assert group.actor.execute_all("tagged") == [None, None]


def test_names_in_reports_say_the_role(group: WorkerGroup[Any]) -> None:
    with pytest.raises(TypeError, match=r"Actor\.update \(role actor\) failed") as caught:
        group.actor.update("x")
    assert caught.value.failures[0].method == "Actor.update (role actor)"  # type: ignore[attr-defined]


def test_why_stuck_says_the_role() -> None:
    roles = create_colocated_worker_cls({"first": Gated, "second": Gated})
    with WorkerGroup([1], roles, backend="threads") as group:
        call = group.second.wait.options(blocking=False)("role")
        while "second.wait" not in group.why_stuck().splitlines()[1]:
            pass
        gate("role").set()
        assert call.result(30) == ["role"]


def test_hooks_run_in_order_and_backwards() -> None:
    EVENTS.clear()
    with WorkerGroup([1], create_colocated_worker_cls(ROLES)):
        assert EVENTS == ["actor starts", "rollout starts"]
    assert EVENTS[2:] == ["rollout stops", "actor stops"]


class Unbuildable(Worker):
    def __init__(self) -> None:
        raise OSError("no weights here")


def test_roles_built_before_one_that_fails_are_stopped() -> None:
    EVENTS.clear()
    with pytest.raises(Exception, match="no weights here"):
        WorkerGroup([1], create_colocated_worker_cls({"actor": Actor, "critic": Unbuildable, "judge": Actor}))
    assert EVENTS == ["actor stops"]


def test_spawned_groups_hold_the_ranks() -> None:
    spawned = WorkerGroup([2], create_colocated_worker_cls(ROLES)).spawn({"actor", "actor_rollout"})
    kept = spawned.pop("actor")
    del spawned
    assert kept.update() == [5, 5]
    kept.close()
    assert not kept._ranks.closed
    kept._ranks.close()


def test_arguments_of_each_rank_reach_roles() -> None:
    roles = create_colocated_worker_cls_fused({"actor": ClassWithInitArgs(Actor, tag=PerRank(["a", "b"]))})
    with WorkerGroup([2], roles) as group:
        assert group.actor.tagged() == ["a", "b"]
    with pytest.raises(GroupUsageError, match="has 2 items; the group has 3 ranks"):
        WorkerGroup([3], roles)


def test_roles_that_are_no_workers() -> None:
    with WorkerGroup([2], create_colocated_worker_cls({"bare": ClassWithInitArgs(Bare, 7)})) as group:
        assert group.bare.get() == [7, 7]


def test_raw_class() -> None:
    cls = create_colocated_worker_raw_cls(ROLES)
    assert cls.__name__ == "FusedWorker_actor_actor_rollout"
    assert cls.is_fused_worker
    assert [recipe.cls for recipe in cls.raw_cls_dict.values()] == [Actor, Rollout]
    with WorkerGroup([1], cls) as group:
        assert group.actor.update() == [5]


def test_class_and_recipe_travel() -> None:
    recipe = create_colocated_worker_cls(ROLES)
    for arrived in (pickle.loads(pickle.dumps(recipe)).cls, pickle.loads(pickle.dumps(recipe.cls))):
        assert [one.cls for one in roles_of(arrived).values()] == [Actor, Rollout]
    call = pickle.loads(pickle.dumps(RoleCall("actor", "update")))
    assert (call, call.__name__) == (RoleCall("actor", "update"), "actor.update")


@pytest.mark.parametrize(
    ("roles", "error", "message"),
    [
        ({}, GroupUsageError, "needs at least one"),
        ({"two words": Actor}, GroupUsageError, "cannot be the name of a role"),
        ({"_hidden": Actor}, GroupUsageError, "cannot be the name of a role"),
        ({3: Actor}, GroupUsageError, "3 cannot be the name of a role"),
        ({"actor": "Actor"}, RecipeError, "a worker is made from a class"),
    ],
)
def test_tables_that_cannot_be(roles: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        create_colocated_worker_cls(roles)


@pytest.mark.parametrize("role", ["close", "execute_all", "resource_pool", "roles"])
def test_role_that_would_hide_the_group(role: str) -> None:
    with pytest.raises(MethodNameClashError, match=rf"has a role '{role}', but WorkerGroup\.{role}"):
        WorkerGroup([1], create_colocated_worker_cls({role: Actor}))


def test_role_named_like_a_method_of_every_worker() -> None:
    with pytest.raises(MethodNameClashError, match="a role 'query_dispatch_info' and a method of that name"):
        WorkerGroup([1], create_colocated_worker_cls({"query_dispatch_info": Actor}))


def test_group_without_roles_has_none_to_spawn() -> None:
    with WorkerGroup([1], Actor) as group:
        assert (group.roles, group.spawn()) == ({}, {})
        with pytest.raises(GroupUsageError, match=r"no role 'actor'; its roles are \(none\)"):
            group.fuse({"actor"})


@given(st.integers(1, 4), st.lists(st.integers(), max_size=9), st.lists(st.integers(-3, 3), max_size=3))
def test_a_role_gives_what_its_class_alone_gives(ranks: int, rows: list[int], updates: list[int]) -> None:
    alone = WorkerGroup([ranks], ClassWithInitArgs(Actor, step=2))
    fused = WorkerGroup(
        [ranks], create_colocated_worker_cls({"other": Actor, "actor": ClassWithInitArgs(Actor, step=2)})
    )
    with alone, fused:
        for times in updates:
            assert fused.actor.update(times) == alone.update(times)
        assert fused.actor.add(Rows(rows)) == alone.add(Rows(rows))
        assert fused.actor.mesh("train") == alone.mesh("train")
