# ruff: noqa: D102, PLR2004  # a test says by its name what it shows, and exact values are its point
"""Ranks start, know who they are, and find their environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from fanfold.dispatch import PerRank
from fanfold.worker import ClassWithInitArgs, RankEnvironmentError, WorkerStartError
from fanfold.worker.testing.abilities import Ability, needs
from fanfold.worker.testing.conformance.suite import Group, Suite
from fanfold.worker.testing.workers import SETTING, Headless, Probe, Stranger

if TYPE_CHECKING:
    from pathlib import Path


class Starting(Suite):
    """Tests of what a rank is told, and of starts that fail."""

    def test_names_and_numbers(self, shared_group: Group) -> None:
        assert shared_group.world_size == 3
        assert shared_group.worker_names == ["conform-Probe_0:0", "conform-Probe_0:1", "conform-Probe_1:0"]
        assert shared_group.who() == [(0, 3), (1, 3), (2, 3)]

    def test_rank_info(self, shared_group: Group) -> None:
        told = [entry["info"] for entry in shared_group.everything()]
        assert told == [(0, 3, 0, 2, 0, "conform-"), (1, 3, 1, 2, 0, "conform-"), (2, 3, 0, 1, 1, "conform-")]

    def test_all_ranks_know_one_rendezvous(self, shared_group: Group) -> None:
        masters = {entry["master"] for entry in shared_group.everything()}
        assert len(masters) == 1
        address, port = masters.pop()
        assert address
        assert 0 < int(port) < 65536
        assert (shared_group.master_address, shared_group.master_port) == (address, port)

    @needs(Ability.ENVIRONMENT)
    def test_environment_says_the_same(self, shared_group: Group) -> None:
        for rank, entry in enumerate(shared_group.everything()):
            environ = entry["environ"]
            assert (environ["RANK"], environ["WORLD_SIZE"]) == (str(rank), "3")
            assert environ["LOCAL_RANK"] == str(entry["info"][2])
            assert environ["LOCAL_WORLD_SIZE"] == environ["RAY_LOCAL_WORLD_SIZE"] == str(entry["info"][3])
            assert environ["NODE_RANK"] == str(entry["info"][4])
            assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == entry["master"]
            assert environ["WG_PREFIX"] == "conform-"
            assert environ["WG_BACKEND"]

    @needs(Ability.ENVIRONMENT)
    def test_worker_env(self) -> None:
        before = dict(os.environ)
        with self.make_group([2], Probe, worker_env={SETTING: "42"}) as group:
            assert [entry["environ"][SETTING] for entry in group.everything()] == ["42", "42"]
        assert dict(os.environ) == before

    @needs(Ability.IMPORT)
    def test_environment_is_there_at_import(self) -> None:
        with self.make_group([2], Probe, worker_env={SETTING: "early"}) as group:
            told = [entry["import"] for entry in group.everything()]
        assert told == [{"RANK": str(rank), "WORLD_SIZE": "2", SETTING: "early"} for rank in (0, 1)]

    @needs(Ability.ENVIRONMENT)
    def test_what_a_rank_writes_into_its_environment_is_its_own(self, shared_group: Group) -> None:
        name = "FANFOLD_CONFORMANCE_OWN"
        assert shared_group.write_environment.options(ranks=[1])(name, "mine") == [None]
        assert shared_group.write_environment(name, "all") == [None, "mine", None]
        assert name not in os.environ

    def test_protected_environment_is_refused(self) -> None:
        with pytest.raises(RankEnvironmentError, match="RANK"):
            self.make_group([1], Probe, worker_env={"RANK": "7"})

    def test_constructor_arguments(self) -> None:
        with self.make_group([2], ClassWithInitArgs(Probe, {"config": [1, 2]})) as group:
            assert group.recall() == [{"config": [1, 2]}] * 2

    def test_constructor_arguments_of_each_rank(self) -> None:
        with self.make_group([2], ClassWithInitArgs(Probe, label=PerRank(["left", "right"]))) as group:
            assert group.recall() == ["left", "right"]

    def test_two_groups_do_not_meet(self, shared_group: Group) -> None:
        with self.make_group([1], Probe) as other:
            assert not set(other.worker_names) & set(shared_group.worker_names)
            masters = {other.everything()[0]["master"], shared_group.everything()[0]["master"]}
            assert len(masters) == 2
            other.remember("other")
            shared_group.remember("shared")
            assert other.recall() == ["other"]

    def test_rank_that_cannot_be_built(self) -> None:
        with pytest.raises(WorkerStartError, match="rank 1") as caught:
            self.make_group([2], ClassWithInitArgs(Probe, refuses=1), name_prefix="refused-")
        assert "rank 1 has no shard" in str(caught.value)
        assert isinstance(caught.value.__cause__, KeyError)
        with self.make_group([2], Probe, name_prefix="refused-") as group:
            assert group.who() == [(0, 2), (1, 2)]

    def test_class_that_is_no_worker(self) -> None:
        with self.make_group([2], ClassWithInitArgs(Stranger, 10)) as group:
            assert group.add(1) == [11, 11]
            assert group.add(2) == [13, 13]

    def test_worker_without_super_init(self) -> None:
        with self.make_group([2], Headless) as group:
            assert group.who() == [0, 1]

    def test_hooks(self, tmp_path: Path) -> None:
        journal = tmp_path / "journal"
        with self.make_group([2], ClassWithInitArgs(Probe, log=str(journal))):
            assert sorted(journal.read_text().splitlines()) == ["0 start", "1 start"]
        assert sorted(journal.read_text().splitlines()) == ["0 start", "0 stop", "1 start", "1 stop"]

    def test_free_ports_are_all_different(self, shared_group: Group) -> None:
        ports = [tuple(port) for port in [*shared_group.hold_port(), *shared_group.hold_port()]]
        assert len(set(ports)) == 6
