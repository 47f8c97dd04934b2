# ruff: noqa: D102  # a test says by its name what it shows, and exact values are its point
"""Looking at ranks between calls and during them."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from fanfold.worker import ClassWithInitArgs, WaitTimeoutError, WorkerLostError
from fanfold.worker.testing.abilities import Ability, needs
from fanfold.worker.testing.conformance.suite import Suite
from fanfold.worker.testing.workers import Probe, Rendezvous

if TYPE_CHECKING:
    from pathlib import Path

    from fanfold.worker.testing.conformance.suite import Group


class Health(Suite):
    """Tests of `why_stuck` and of the aliveness check."""

    @needs(Ability.ASK)
    @needs(Ability.BUSY)
    def test_why_stuck(self, tmp_path: Path) -> None:
        with self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            call = group.wait_for.options(blocking=False)("released", [1])
            tables: list[str] = []

            def one_rank_sleeps() -> bool:  # now and then it is asked while it looks whether it is released
                tables.append(group.why_stuck())
                idle, _ = self.lines_of(tables[-1], group)
                return "time.sleep" in tables[-1] and " - " in idle

            self.until(one_rank_sleeps)
            _, busy = self.lines_of(tables[-1], group)
            assert "wait_for" in busy
            assert "workers.py" in tables[-1]
            assert call.so_far() == {0: "released"}
            (tmp_path / "released").touch()
            call.result(self.patience)

    @staticmethod
    def lines_of(table: str, group: Group) -> list[str]:
        """The line of each rank in the table of `why_stuck`."""
        return [next(line for line in table.splitlines() if name in line) for name in group.worker_names]

    @needs(Ability.BUSY)
    def test_slow_call_says_where_its_ranks_are(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with self.make_group([1], ClassWithInitArgs(Rendezvous, str(tmp_path)), warn_after=0.05) as group:
            call = group.wait_for.options(blocking=False)("released")
            with caplog.at_level(logging.WARNING, "fanfold.worker"), pytest.raises(WaitTimeoutError):
                call.result(0.5)
            (tmp_path / "released").touch()
            call.result(self.patience)
        assert any("Rendezvous.wait_for has been running for" in message for message in caplog.messages)

    @needs(Ability.WATCH)
    @needs(Ability.DEATH)
    def test_aliveness_check_with_a_function(self, tmp_path: Path) -> None:
        news: list[WorkerLostError] = []
        with self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            group.start_worker_aliveness_check(0.05, on_lost=news.append)
            group.die.options(blocking=False)(1, "released")
            self.until(lambda: news)
            (tmp_path / "released").touch()
            assert news[0].ranks == (1,)
            assert group.worker_names[1] in str(news[0])

    @needs(Ability.WATCH)
    @needs(Ability.DEATH)
    def test_aliveness_check_speaks_at_the_next_call(self, tmp_path: Path) -> None:
        with self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            group.start_worker_aliveness_check(0.05, on_lost="next_call")
            group.die.options(blocking=False)(1, "released")
            (tmp_path / "released").touch()
            self.until(lambda: group._ranks.bad_news)  # noqa: SLF001  # what the next call looks at
            with pytest.raises(WorkerLostError, match="has lost 1 of its ranks"):
                group.wait_for("released", [])

    @needs(Ability.WATCH)
    def test_aliveness_check_leaves_no_thread(self) -> None:
        before = set(threading.enumerate())
        with self.make_group([1], Probe) as group:
            group.start_worker_aliveness_check(3600)
            # By name: threads of something else may come and go meanwhile.
            new = [each for each in set(threading.enumerate()) - before if each.name.startswith("fanfold-")]
            assert [each.name for each in new].count(f"fanfold-look-after {group!r}") == 1
        self.until(lambda: not any(each.is_alive() for each in new))

    @needs(Ability.DEATH)
    def test_peers_hear_of_a_lost_rank(self, tmp_path: Path) -> None:
        journal = tmp_path / "journal"
        with self.make_group([2], ClassWithInitArgs(Probe, log=str(journal))) as group:
            with pytest.raises(WorkerLostError):
                group.execute(_kill_yourself, 1)
            self.until(lambda: "0 lost [1]" in journal.read_text().splitlines())


def _kill_yourself(worker: Probe, rank: int) -> None:
    if worker.rank == rank:
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
