# ruff: noqa: D102  # a test says by its name what it shows, and exact values are its point
"""Several worker classes in one process."""

from __future__ import annotations

import pytest
from fanfold.dispatch import Rows
from fanfold.worker import (
    ClassWithInitArgs,
    GroupUsageError,
    MethodNameClashError,
    UnknownMethodError,
    create_colocated_worker_cls,
)
from fanfold.worker.testing.conformance.suite import Suite
from fanfold.worker.testing.workers import Actor, Critic


class Roles(Suite):
    """Tests of classes that share processes."""

    def test_roles_in_one_process(self) -> None:
        roles = create_colocated_worker_cls({"actor": ClassWithInitArgs(Actor, step=5), "critic": Critic})
        with self.make_group([2], roles) as group:
            assert group.actor.who() == [("Actor", 0), ("Actor", 1)]
            assert group.critic.who() == [("Critic", 0), ("Critic", 1)]
            assert group.actor.update() == [5, 5]
            assert group.critic.weights_of("actor") == [5, 5]
            assert group.critic.weights_of("reward") == [None, None]
            assert group.critic.judge(Rows(range(3))) == Rows([1, 2, 3])
            spawned = group.spawn({"actor", "critic"})
            assert spawned["actor"].update() == [10, 10]
            assert spawned["critic"][1].who() == [("Critic", 1)]
            group.fuse({"actor"})
            with pytest.raises(GroupUsageError, match=r"no role 'reward'.*actor, critic"):
                group.spawn({"reward"})
            with pytest.raises(UnknownMethodError, match="update"):
                spawned["critic"].update()

    def test_role_may_not_hide_the_group(self) -> None:
        with pytest.raises(MethodNameClashError, match="execute_all"):
            self.make_group([1], create_colocated_worker_cls({"execute_all": Actor}))
