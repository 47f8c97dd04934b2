# ruff: noqa: D102, PLR2004  # a test says by its name what it shows, and exact values are its point
"""What every backend has to do, as tests. `fanfold.worker.testing` says how to run them over a backend of your own."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from fanfold.dispatch import ArgumentError, CallContext, DivideError, PerRank, Rows
from fanfold.worker import (
    BusyRankError,
    Call,
    CallCancelledError,
    ClassWithInitArgs,
    Failure,
    GroupCallError,
    GroupUsageError,
    MeshError,
    MethodNameClashError,
    NotPicklableError,
    RankEnvironmentError,
    RemoteError,
    Request,
    UnknownMethodError,
    WaitTimeoutError,
    WorkerGroup,
    WorkerLostError,
    WorkerStartError,
    create_colocated_worker_cls,
    gather,
    wait,
)
from fanfold.worker.testing.abilities import Ability, needs
from fanfold.worker.testing.workers import (
    SETTING,
    Actor,
    Critic,
    FussyError,
    Headless,
    Probe,
    Rendezvous,
    Stranger,
    Talker,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Group = WorkerGroup[Any]


class Conformance:
    """The tests; a class of yours that derives from this one says how groups are made, and what its backend lacks."""

    lacks: ClassVar[frozenset[Ability]] = frozenset()
    shared_name: ClassVar[str] = "conform-"
    patience: ClassVar[float] = 60.0

    @classmethod
    def make_group(cls, pool: Any, recipe: Any, **options: Any) -> Group:
        """Start a group that owns its ranks; takes what `WorkerGroup` takes, but for the backend."""
        raise NotImplementedError

    @classmethod
    def until(cls, condition: Callable[[], object]) -> None:
        """Wait for something that has to become true."""
        end = time.monotonic() + cls.patience
        while not condition():
            assert time.monotonic() < end, f"{condition} did not become true within {cls.patience} s"
            time.sleep(0.01)

    # Starting

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

    # Calling

    def test_positional_keyword_and_default_arguments(self, shared_group: Group) -> None:
        assert shared_group.add(10) == [11, 12, 13]
        assert shared_group.add(10, 5) == [15, 16, 17]
        assert shared_group.add(a=10, b=5, c=100) == [115, 116, 117]

    def test_wrong_call_sends_nothing(self, shared_group: Group) -> None:
        before = shared_group.remember("x")
        with pytest.raises(ArgumentError, match="value"):
            shared_group.remember(vlaue=1)
        with pytest.raises(ArgumentError):
            shared_group.remember()
        assert shared_group.remember("x") == [count + 1 for count in before]

    def test_misspelt_method(self, shared_group: Group) -> None:
        with pytest.raises(UnknownMethodError, match="did you mean 'double'"):
            shared_group.dubble(Rows([1]))

    @pytest.mark.parametrize(
        "value",
        [
            None,
            True,
            7,
            -1.5,
            "text",
            b"bytes",
            [],
            {"a": [1, {"b": None}]},
            (1, "x"),
            {1, 2},
            bytearray(b"x" * 300_000),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_values_travel(self, shared_group: Group, value: Any) -> None:
        assert shared_group.echo(value) == [value] * 3
        assert [type(arrived) for arrived in shared_group.echo(value)] == [type(value)] * 3

    @pytest.mark.parametrize("value", [[1, 2, 3], bytearray(200_000)], ids=["small", "large"])
    def test_a_rank_cannot_write_into_the_callers_argument(self, shared_group: Group, value: Any) -> None:
        before = pickle.dumps(value)
        assert shared_group.spoil(value) == [len(value)] * 3
        assert pickle.dumps(value) == before

    def test_results_are_the_callers_own(self, shared_group: Group) -> None:
        shared_group.remember([1, 2])
        shared_group.recall()[0].append(3)
        assert shared_group.recall() == [[1, 2]] * 3

    def test_arguments_are_taken_when_the_call_is_made(self, shared_group: Group) -> None:
        value = bytearray(200_000)
        call = shared_group.echo.options(blocking=False)(value)
        value[0] = 99
        assert [arrived[0] for arrived in call.result()] == [0, 0, 0]

    def test_workers_keep_what_they_were_told(self, shared_group: Group) -> None:
        first = shared_group.remember({"step": 1})
        assert shared_group.remember({"step": 2}) == [count + 1 for count in first]
        assert shared_group.recall() == [{"step": 2}] * 3

    def test_lists_for_each_rank(self, shared_group: Group) -> None:
        assert shared_group.each(["a", "b", "c"]) == [(0, "a"), (1, "b"), (2, "c")]
        assert shared_group.each("whole") == [(0, "whole"), (1, "whole"), (2, "whole")]
        assert shared_group.echo(PerRank([1, 2, 3])) == [1, 2, 3]
        with pytest.raises(DivideError):
            shared_group.echo(PerRank([1, 2]))

    def test_rank_zero(self, shared_group: Group) -> None:
        assert shared_group.lead([1, 2, 3]) == (0, [1, 2, 3])

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
    def test_rows_are_divided_and_collected(self, shared_group: Group, count: int) -> None:
        assert shared_group.double(Rows(range(count))) == Rows(range(0, 2 * count, 2))
        assert shared_group.double_padded(Rows(range(count))) == Rows(range(0, 2 * count, 2))

    def test_padding_is_known_to_the_worker(self, shared_group: Group) -> None:
        assert shared_group.counted(Rows(range(4))) == Rows([(2, 0), (2, 0), (2, 1), (2, 1)])

    def test_mesh_collects_one_of_each_pair(self, shared_group: Group) -> None:
        assert shared_group.by_pairs(Rows(range(4))) == Rows([(0, 0), (0, 1), (2, 2), (2, 3)])

    def test_mesh_collects_in_data_parallel_order(self, shared_group: Group) -> None:
        assert shared_group.by_backwards(Rows(range(3))) == Rows([(2, 0), (1, 1), (0, 2)])

    def test_unknown_mesh(self, shared_group: Group) -> None:
        with pytest.raises(MeshError, match=r"nowhere.*backwards, pairs"):
            shared_group.by_nowhere(Rows(range(3)))

    def test_generators_arrive_as_lists(self, shared_group: Group) -> None:
        assert shared_group.counting(3) == [[0, 1, 2]] * 3

    def test_asynchronous_methods(self) -> None:
        with self.make_group([2], Talker) as group:
            assert group.add_async(5) == [5, 6]
            assert group.counting_async(2) == [[0, 1]] * 2
            assert group.who() == [0, 1]
            with pytest.raises(KeyError) as caught:
                group.fail_async()
            assert set(caught.value.by_rank()) <= {0, 1}  # type: ignore[attr-defined]

    @needs(Ability.OVERLAP)
    def test_asynchronous_calls_overlap(self) -> None:
        with self.make_group([2], Talker) as group:
            heard = group.listen()
            assert group.speak() == ["spoken on 0", "spoken on 1"]
            assert heard.result(self.patience) == ["heard on 0", "heard on 1"]

    @needs(Ability.CONCURRENT)
    def test_ranks_run_at_the_same_time(self, tmp_path: Path) -> None:
        with self.make_group([3], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            assert group.meet("here") == [3, 3, 3]

    def test_functions_instead_of_methods(self, shared_group: Group) -> None:
        assert shared_group.execute(_rank_of, 100) == [100, 101, 102]
        assert shared_group.execute_all("add", 10) == [10 + 1 + rank for rank in range(3)]
        assert shared_group.execute_all_async("add", 10).result() == [11, 12, 13]
        assert shared_group.execute_rank_zero("add", 10) == 11
        assert shared_group.execute_rank_zero_async("add", 10).result() == 11
        assert shared_group.execute_with_func_generator(_double_rows, Rows(range(4))) == Rows([0, 2, 4, 6])
        assert shared_group.execute_func_rank_zero(max, 3, 4) == 4

    def test_list_as_long_as_the_group_goes_whole_with_a_warning(self, shared_group: Group) -> None:
        with pytest.warns(UserWarning, match="PerRank"):
            assert shared_group.execute_all("echo", [1, 2, 3]) == [[1, 2, 3]] * 3
        assert shared_group.execute_all("echo", PerRank([1, 2, 3])) == [1, 2, 3]

    # Parts

    def test_parts_call_their_ranks_only(self, shared_group: Group) -> None:
        assert shared_group[1].add(10) == [12]
        assert shared_group[-1].add(10) == [13]
        assert shared_group[0:2].add(10) == [11, 12]
        assert shared_group.slice([2, 0]).add(10) == [11, 13]
        assert shared_group.add.options(ranks=[0, 2])(10) == [11, 13]
        assert shared_group.slice(mesh="pairs", dp=0).add(10) == [11, 12]
        assert shared_group.slice(lambda at: at["dp"] == 1, mesh="pairs").ranks == (2,)
        assert [part.ranks for part in shared_group] == [(0,), (1,), (2,)]

    def test_parts_divide_rows_among_themselves(self, shared_group: Group) -> None:
        assert shared_group[1:].double(Rows(range(5))) == Rows(range(0, 10, 2))
        assert shared_group[1:][1].ranks == (2,)

    def test_closing_a_part_closes_nothing(self, shared_group: Group) -> None:
        with shared_group[0] as part:
            assert part.who() == [(0, 3)]
        with pytest.raises(GroupUsageError, match="closed"):
            part.who()
        assert shared_group.who() == [(0, 3), (1, 3), (2, 3)]

    def test_part_keeps_the_group(self) -> None:
        part = self.make_group([2], Probe)[1]
        assert part.who() == [(1, 2)]
        part._ranks.close()  # noqa: SLF001  # the only way to its end by now

    # Failures

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

    # Calls as values

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

    # Health

    @needs(Ability.ASK)
    @needs(Ability.BUSY)
    def test_why_stuck(self, tmp_path: Path) -> None:
        with self.make_group([2], ClassWithInitArgs(Rendezvous, str(tmp_path))) as group:
            call = group.wait_for.options(blocking=False)("released", [1])
            self.until(lambda: "wait_for" in group.why_stuck() and call.so_far())
            table = group.why_stuck()
            idle, busy = (next(line for line in table.splitlines() if name in line) for name in group.worker_names)
            assert " - " in idle
            assert "wait_for" in busy
            assert "workers.py" in table
            assert "time.sleep" in table
            (tmp_path / "released").touch()
            call.result(self.patience)

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

    # Roles

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

    # Travelling

    @needs(Ability.TRAVEL)
    def test_group_as_an_argument(self, shared_group: Group) -> None:
        with self.make_group([2], Probe) as other:
            assert other.drive(shared_group) == [[1, 2, 3], [101, 102, 103]]
        copy = pickle.loads(pickle.dumps(shared_group))  # noqa: S301  # our own
        assert copy.who() == [(0, 3), (1, 3), (2, 3)]
        copy.close()
        assert shared_group.who() == [(0, 3), (1, 3), (2, 3)]

    # The end

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


def _rank_of(worker: Probe, base: int) -> int:
    return base + worker.rank


def _double_rows(worker: Probe, rows: Rows[int]) -> Rows[int]:  # noqa: ARG001  # a function of the worker
    return Rows(2 * row for row in rows)


def _kill_yourself(worker: Probe, rank: int) -> None:
    if worker.rank == rank:
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
