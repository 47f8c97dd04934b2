# ruff: noqa: D102, PLR2004  # a test says by its name what it shows, and exact values are its point
"""Calls that are not waited for: passed on, awaited, gathered, cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from fanfold.dispatch import PerRank, Rows
from fanfold.worker import Call, CallCancelledError, ClassWithInitArgs, WaitTimeoutError, gather, wait
from fanfold.worker.testing.abilities import Ability, needs
from fanfold.worker.testing.conformance.suite import Group, Suite
from fanfold.worker.testing.workers import Rendezvous

if TYPE_CHECKING:
    from pathlib import Path


class CallsAsValues(Suite):
    """Tests of the `Call` that a call without waiting returns."""

    def test_call_that_does_not_block(self, shared_group: Group) -> None:
        call = shared_group.later(10)
        assert isinstance(call, Call)
        assert isinstance(call, list)
        assert len(call) == 3
        assert call.result(self.patience) == [10, 11, 12]
        assert call.result() is call.get()
        assert call.done()
        assert call.so_far() == {0: 10, 1: 11, 2: 12}
        assert dict(call.as_they_come()) == {0: 10, 1: 11, 2: 12}

    def test_failed_call_says_so_each_time(self, shared_group: Group) -> None:
        call = shared_group.fail.options(blocking=False)([1])
        for _ in range(2):
            with pytest.raises(KeyError):
                call.result(self.patience)
        assert call.done()

    def test_await(self, shared_group: Group) -> None:
        async def both() -> Any:
            return await shared_group.later(1), await asyncio.gather(shared_group.later(10), shared_group.later(20))

        assert asyncio.run(both()) == ([1, 2, 3], [[10, 11, 12], [20, 21, 22]])

    def test_await_a_failure(self, shared_group: Group) -> None:
        async def failing() -> Any:
            return await shared_group.fail.options(blocking=False)([2])

        with pytest.raises(KeyError, match="shard 2"):
            asyncio.run(failing())

    def test_call_as_argument_of_another(self, shared_group: Group) -> None:
        numbers = shared_group.later(5)
        assert shared_group.echo(numbers) == [[5, 6, 7]] * 3
        assert shared_group.each(PerRank(shared_group.later(5))) == [(0, 5), (1, 6), (2, 7)]
        rows = shared_group.double.options(blocking=False)(Rows(range(4)))
        assert shared_group.double(rows) == Rows([0, 4, 8, 12])

    def test_failure_travels_with_a_dependent_call(self, shared_group: Group) -> None:
        with pytest.raises(KeyError, match="shard 1"):
            shared_group.echo(shared_group.fail.options(blocking=False)([1]))

    def test_gather_and_wait(self, shared_group: Group) -> None:
        calls = [shared_group.later(number) for number in (10, 20, 30)]
        assert gather(calls) == [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
        done, waiting = wait(calls, count=3, timeout=self.patience)
        assert (len(done), waiting) == (3, [])
        with pytest.raises(KeyError):
            gather(shared_group.later(1), shared_group.fail.options(blocking=False)([0]))

    @needs(Ability.BUSY)
    def test_waiting_does_not_consume(self, tmp_path: Path) -> None:
        with self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            call = group.wait_for.options(blocking=False)("released", [1])
            self.until(call.so_far)
            assert not call.done()
            assert call.so_far() == {0: "released"}
            with pytest.raises(WaitTimeoutError, match=r"not over within 0\.05 s"):
                call.result(0.05)
            assert wait([call], timeout=0.05) == ([], [call])
            (tmp_path / "released").touch()
            assert call.result(self.patience) == ["released", "released"]

    @needs(Ability.BUSY)
    def test_deadline_travels_with_dependent_calls(self, tmp_path: Path) -> None:
        with self.make_group([1], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            call = group.wait_for.options(blocking=False, timeout=0.3)("released")
            with pytest.raises(WaitTimeoutError):
                group.wait_for(call)
            (tmp_path / "released").touch()

    @needs(Ability.BUSY)
    def test_cancel_a_running_call(self, tmp_path: Path) -> None:
        with self.make_group([1], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            call = group.wait_for.options(blocking=False)("never", patience=3600)
            self.until(lambda: "wait_for" in group.why_stuck() or Ability.ASK in self.lacks)
            found = call.cancel()
            assert found == {0: "running"}
            with pytest.raises(CallCancelledError, match=r"Rendezvous\.wait_for"):
                call.result()
            if Ability.DROP not in self.lacks:
                assert group.wait_for("never", []) == ["never"]
                assert (tmp_path / "never-cancelled-0").exists()

    @needs(Ability.DROP)
    def test_cancel_a_call_that_has_not_begun(self, tmp_path: Path) -> None:
        with self.make_group([1], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            first = group.wait_for.options(blocking=False)("released")
            second = group.log_call(1)
            third = group.log_call(2)
            assert second.cancel() == {0: "dropped"}
            (tmp_path / "released").touch()
            assert third.result(self.patience) == [2]
            assert first.result(self.patience) == ["released"]
            assert not (tmp_path / "began-1-0").exists()
            with pytest.raises(CallCancelledError):
                second.result()

    def test_cancel_a_finished_call(self, shared_group: Group) -> None:
        call = shared_group.later(1)
        self.until(lambda: len(call.so_far()) == 3)
        assert call.cancel() == {0: "finished", 1: "finished", 2: "finished"}
        assert call.result() == [1, 2, 3]
