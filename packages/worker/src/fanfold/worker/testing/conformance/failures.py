# ruff: noqa: D102  # a test says by its name what it shows, and exact values are its point
"""What fails says so, once, with its rank; and the group goes on where it can."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from fanfold.worker import (
    BusyRankError,
    ClassWithInitArgs,
    GroupCallError,
    NotPicklableError,
    RemoteError,
    WaitTimeoutError,
    WorkerLostError,
)
from fanfold.worker.testing.abilities import Ability, needs
from fanfold.worker.testing.conformance.suite import Group, Suite
from fanfold.worker.testing.workers import FussyError, Rendezvous

if TYPE_CHECKING:
    from pathlib import Path


class Failures(Suite):
    """Tests of errors, lost ranks and busy ones."""

    def test_error_is_of_the_class_that_was_raised(self, shared_group: Group) -> None:
        call = shared_group.fail.options(blocking=False)([1])
        self.until(lambda: not call.inside())  # so that what all ranks did is known, however long it took
        with pytest.raises(KeyError, match="shard 1") as caught:
            call.result()
        error: Any = caught.value
        assert isinstance(error, GroupCallError)
        assert error.method == "Probe.fail"
        assert error.results == {0: 0, 2: 2}
        assert list(error.by_rank()) == [1]
        assert error.failures[0].worker == shared_group.worker_names[1]
        assert "raise _ERRORS[kind]" in error.failures[0].trace
        assert "ranks 0, 2: finished" in str(error)

    def test_attributes_of_errors_travel(self, shared_group: Group) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            shared_group.fail([2], "file")
        assert (caught.value.errno, caught.value.filename) == (2, "/data/2")
        with pytest.raises(FussyError) as fussy:
            shared_group.fail([0], "fussy")
        assert (fussy.value.shard, fussy.value.reason) == (0, "unreadable")

    def test_error_that_cannot_travel(self, shared_group: Group) -> None:
        with pytest.raises(RemoteError, match="LockedError") as caught:
            shared_group.fail([0], "locked")
        assert caught.value.text == "holds a lock"

    def test_stop_iteration_is_an_error_like_any_other(self, shared_group: Group) -> None:
        with pytest.raises(GroupCallError, match="StopIteration"):
            shared_group.fail([1], "stop")

    def test_like_errors_are_folded(self, shared_group: Group) -> None:
        call = shared_group.fail.options(blocking=False)([0, 1, 2], "number")
        self.until(lambda: not call.inside())
        with pytest.raises(ValueError, match="ranks 0-2: ValueError: row"):
            call.result()

    def test_result_that_cannot_travel(self, shared_group: Group) -> None:
        with pytest.raises(NotPicklableError, match="the result of unpicklable"):
            shared_group.unpicklable()

    def test_argument_that_cannot_travel(self, shared_group: Group) -> None:
        with pytest.raises(NotPicklableError, match="argument"):
            shared_group.echo(threading.Lock())

    def test_group_works_after_failures(self, shared_group: Group) -> None:
        for kind in ("key", "fussy", "locked"):
            with pytest.raises(GroupCallError):
                shared_group.fail([0, 1, 2], kind)
        assert shared_group.who() == [(0, 3), (1, 3), (2, 3)]

    @needs(Ability.BUSY)
    def test_first_failure_ends_the_call(self, tmp_path: Path) -> None:
        with self.make_group([3], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            with pytest.raises(KeyError, match="shard 2") as caught:
                group.fail_or_wait(2, "released")
            assert caught.value.unfinished == (0, 1)  # type: ignore[attr-defined]
            (tmp_path / "released").touch()
            assert group.wait_for("released") == ["released"] * 3

    @needs(Ability.BUSY)
    def test_next_call_names_the_busy_rank(self, tmp_path: Path) -> None:
        with self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            with pytest.raises(WaitTimeoutError, match=group.worker_names[1]):
                group.wait_for.options(timeout=0.5)("released", [1])
            with pytest.raises(BusyRankError, match=r"rank 1 .*inside Rendezvous.wait_for"):
                group.wait_for.options(timeout=0.2)("released", [])
            (tmp_path / "released").touch()
            assert group.wait_for("released", []) == ["released"] * 2

    @needs(Ability.DEATH)
    def test_rank_that_dies(self, tmp_path: Path) -> None:
        with self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            with pytest.raises(WorkerLostError) as caught:
                group.die(1, "released")
            assert list(caught.value.by_rank()) == [1]  # type: ignore[attr-defined]
            assert group.worker_names[1] in str(caught.value)
            (tmp_path / "released").touch()
            with pytest.raises(WorkerLostError, match=group.worker_names[1]):
                group.wait_for("released")

    @needs(Ability.RENEW)
    @needs(Ability.BUSY)
    def test_recover_busy_rank(self, tmp_path: Path) -> None:
        with self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            with pytest.raises(WaitTimeoutError):
                group.wait_for.options(timeout=0.5)("never", [1], patience=3600)
            self.until(lambda: [member.rank for member, _ in group._ranks.busy()] == [1])  # noqa: SLF001  # rank 0 is out
            assert group.recover() == [1]
            assert group.wait_for("never", []) == ["never"] * 2
            assert group.recover() == []

    @needs(Ability.RENEW)
    @needs(Ability.DEATH)
    def test_recover_dead_rank(self, tmp_path: Path) -> None:
        with self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            before, names = group.process(), group.worker_names
            (tmp_path / "released").touch()
            with pytest.raises(WorkerLostError):
                group.die(1, "released")
            assert group.recover() == [1]
            after = group.process()
            assert after[0] == before[0]
            assert after[1] != before[1]
            assert group.worker_names == names
