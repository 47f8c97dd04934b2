# ruff: noqa: D102  # a test says by its name what it shows, and exact values are its point
"""Groups given to others, and the end of a group."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

import pytest
from fanfold.dispatch import CallContext
from fanfold.worker import ClassWithInitArgs, Failure, GroupUsageError, Request, WorkerLostError
from fanfold.worker.testing.abilities import Ability, needs
from fanfold.worker.testing.conformance.suite import Group, Suite
from fanfold.worker.testing.workers import Probe, Rendezvous

if TYPE_CHECKING:
    from pathlib import Path


class Ends(Suite):
    """Tests of travelling and closing."""

    @needs(Ability.TRAVEL)
    def test_group_as_an_argument(self, shared_group: Group) -> None:
        with self.make_group([2], Probe) as other:
            assert other.drive(shared_group) == [[1, 2, 3], [101, 102, 103]]
        copy = pickle.loads(pickle.dumps(shared_group))  # noqa: S301  # our own
        assert copy.who() == [(0, 3), (1, 3), (2, 3)]
        copy.close()
        assert shared_group.who() == [(0, 3), (1, 3), (2, 3)]

    def test_close_twice_and_call_afterwards(self) -> None:
        group = self.make_group([2], Probe)
        group.close()
        group.close()
        with pytest.raises(GroupUsageError, match="closed"):
            group.who()

    def test_close_ends_the_ranks(self) -> None:
        group = self.make_group([2], Probe)
        backend, member = group._backend, group._members[1]  # noqa: SLF001  # a group that is closed takes no call
        group.close()
        handle = backend.call(member, Request("who", (), {}, CallContext("who", 1, 2)))
        self.until(lambda: backend.wait([handle], 0.1))
        outcome = backend.fetch(handle)
        assert isinstance(outcome, Failure)
        assert outcome.lost
        assert isinstance(outcome.error, WorkerLostError)

    @needs(Ability.ASK)
    @needs(Ability.BUSY)
    def test_close_during_a_call_gives_no_result(self, tmp_path: Path) -> None:
        group = self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path)))
        call = group.wait_for.options(blocking=False)("never", patience=3600)
        self.until(lambda: all("wait_for" in line for line in group.why_stuck().splitlines()[1:3]))
        group.close()
        with pytest.raises(WorkerLostError):
            call.result(self.patience)

    def test_name_is_free_after_close(self) -> None:
        for _ in range(2):
            with self.make_group([1], Probe, name_prefix="again-") as group:
                assert group.worker_names == ["again-Probe_0:0"]

    def test_driver_keeps_its_environment(self, shared_group: Group) -> None:
        before = dict(os.environ)
        shared_group.everything()
        with pytest.raises(KeyError):
            shared_group.fail([0])
        assert dict(os.environ) == before
