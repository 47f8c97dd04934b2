from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from fanfold.dispatch import Dispatch, Replicate, Rows, Shard, register
from fanfold.worker import (
    BusyRankError,
    CallCancelledError,
    GroupCallError,
    GroupUsageError,
    InlineBackend,
    WaitTimeoutError,
    Worker,
    WorkerGroup,
    WorkerLostError,
    gather,
    wait,
)
from fanfold.worker.testing import Fault, FaultyBackend
from fanfold.worker.threads import ThreadsBackend
from gates import Gated, gate

if TYPE_CHECKING:
    from collections.abc import Iterator


class Doubler(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def double(self, rows: Rows[int]) -> Rows[int]:
        return Rows(2 * row for row in rows)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def number(self) -> int:
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False, materialize_futures=False)
    def raw(self, value: Any) -> str:
        return type(value).__name__


@pytest.fixture(name="group", scope="module")
def _group() -> Iterator[WorkerGroup[Gated]]:
    with WorkerGroup([3], Gated, backend="threads") as group:
        yield group


def test_a_call_is_a_list_of_its_handles(group: WorkerGroup[Gated]) -> None:
    first, second = (group.quick.options(blocking=False)(value) for value in "ab")
    assert first + second == [*first, *second]
    assert first[1:] == list(first)[1:]
    assert first != second
    assert {first: 1}[first] == 1
    gather(first, second)


def test_inline_call_travels_as_its_handles_only() -> None:
    with WorkerGroup([2], Doubler) as group:
        call = group.number()
        arrived = pickle.loads(pickle.dumps(call))
        assert type(arrived) is list
        assert len(arrived) == 2


def test_result_is_the_same_object_each_time(group: WorkerGroup[Gated]) -> None:
    call = group.quick.options(blocking=False)([1])
    assert call.result() is call.result()


def test_timeout_of_a_wait_does_not_end_the_call(group: WorkerGroup[Gated]) -> None:
    call = group.wait.options(blocking=False)("t1", (1,))
    with pytest.raises(
        WaitTimeoutError, match=r"Gated\.wait on 3 ranks was not over within 0\.01 s; still missing: .*_0:1"
    ):
        call.result(0.01)
    with pytest.raises(WaitTimeoutError):
        call.result(0)
    gate("t1").set()
    assert call.result(30) == ["t1"] * 3


def test_own_limit_ends_the_call_and_names_the_ranks(group: WorkerGroup[Gated]) -> None:
    with pytest.raises(WaitTimeoutError, match=r"within 0\.02 s"):
        group.wait.options(timeout=0.02)("t2", (1, 2))
    with pytest.raises(BusyRankError, match=r"rank 1 \(.*\) has been inside Gated\.wait for \d+\.\d s, rank 2"):
        group.quick.options(timeout=0.02)()
    assert group.quick.options(ranks=[0])("free") == ["free"]
    gate("t2").set()
    assert group.quick("again") == ["again"] * 3


def test_finished_ranks_are_reported_with_a_failure(group: WorkerGroup[Gated]) -> None:
    with pytest.raises(GroupCallError) as caught:
        group.fail((0, 2))
    assert set(caught.value.by_rank()) == {0, 2}
    assert caught.value.results == {1: 1}
    assert caught.value.unfinished == ()


def test_results_as_they_come(group: WorkerGroup[Gated]) -> None:
    call = group.wait.options(blocking=False)("t3", (0,))
    coming = call.as_they_come()
    first = [next(coming)[0], next(coming)[0]]
    assert sorted(first) == [1, 2]
    gate("t3").set()
    assert list(coming) == [(0, "t3")]
    failing = group.fail.options(blocking=False)((1,))
    with pytest.raises(KeyError):
        list(failing.as_they_come())


def test_cancel_keeps_what_had_finished(group: WorkerGroup[Gated]) -> None:
    call = group.wait.options(blocking=False)("t4", (2,))
    while len(call.so_far()) < 2:
        time.sleep(0.001)
    assert call.cancel() == {0: "finished", 1: "finished", 2: "running"}
    assert call.so_far() == {0: "t4", 1: "t4"}
    assert call.done()
    with pytest.raises(CallCancelledError, match=r"Gated\.wait was cancelled"):
        call.result()
    assert group.quick(1) == [1, 1, 1]


def test_cancel_after_a_failure_changes_nothing(group: WorkerGroup[Gated]) -> None:
    call = group.fail.options(blocking=False)((0, 1, 2))
    wait([call], timeout=30)
    call.cancel()
    with pytest.raises(KeyError):
        call.result()


def test_await_with_and_without_news(group: WorkerGroup[Gated]) -> None:
    async def main(call: Any) -> Any:
        asyncio.get_running_loop().call_later(0.02, gate("t5").set)
        return await call

    assert asyncio.run(main(group.wait.options(blocking=False)("t5"))) == ["t5"] * 3
    with WorkerGroup([2], Doubler, backend=FaultyBackend(InlineBackend(), [Fault(0, "slow", seconds=0.03)])) as quiet:
        assert asyncio.run(main(quiet.number())) == [0, 1]


def test_await_runs_into_the_limit(group: WorkerGroup[Gated]) -> None:
    async def main() -> Any:
        return await group.wait.options(blocking=False, timeout=0.05)("t6")

    with pytest.raises(WaitTimeoutError):
        asyncio.run(main())
    gate("t6").set()


def test_awaiting_task_may_be_cancelled_and_the_call_goes_on(group: WorkerGroup[Gated]) -> None:
    call = group.wait.options(blocking=False)("t7")

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(_wrapped(call)), 0.02)

    asyncio.run(main())
    gate("t7").set()
    assert call.result(30) == ["t7"] * 3


async def _wrapped(call: Any) -> Any:
    return await call


def test_gather_over_groups_and_backends(group: WorkerGroup[Gated]) -> None:
    with WorkerGroup([2], Doubler) as other:
        waiting = group.wait.options(blocking=False)("t8")
        threading.Timer(0.02, gate("t8").set).start()
        assert gather([waiting], other.number(), timeout=30) == [["t8"] * 3, [0, 1]]


def test_gather_raises_the_first_failure_and_times_out(group: WorkerGroup[Gated]) -> None:
    waiting = group.wait.options(blocking=False, ranks=[0])("t9")
    failing = group.fail.options(blocking=False, ranks=[1])((1,))
    with pytest.raises(KeyError):
        gather(waiting, failing)
    with pytest.raises(WaitTimeoutError, match=r"1 calls was not over within 0\.02 s; still missing: Gated\.wait"):
        gather(waiting, timeout=0.02)
    gate("t9").set()
    assert gather(waiting) == [["t9"]]
    assert gather() == []


def test_wait_counts(group: WorkerGroup[Gated]) -> None:
    waiting = group.wait.options(blocking=False, ranks=[0])("t10")
    quick = [group.quick.options(blocking=False, ranks=[1])(number) for number in range(2)]
    done, rest = wait([waiting, *quick], count=2, timeout=30)
    assert (done, rest) == (quick, [waiting])
    assert wait([waiting], count=1, timeout=0) == ([], [waiting])
    gate("t10").set()
    assert wait([waiting], count=9, timeout=30) == ([waiting], [])
    assert wait([]) == ([], [])


def test_wait_takes_a_call_without_time_left_as_done(group: WorkerGroup[Gated]) -> None:
    call = group.wait.options(blocking=False, timeout=0.02)("t11")
    assert wait([call]) == ([call], [])
    with pytest.raises(WaitTimeoutError):
        call.result()
    gate("t11").set()


def test_calls_in_marks_and_keywords() -> None:
    with WorkerGroup([2], Doubler) as group:
        rows = group.double(Rows(range(3)))
        assert group.double(Shard(rows)).result() == Rows([0, 4, 8])
        assert group.double(rows=group.double(rows)).result() == Rows([0, 8, 16])
        assert group.double(Replicate(rows)).result() == Rows([0, 4, 8, 0, 4, 8])


def test_call_that_is_not_to_become_a_value_goes_as_handles() -> None:
    with WorkerGroup([2], Doubler) as group:
        assert group.raw(group.number()).result() == ["list", "list"]


class Argument(frozenset[int]):
    """Ranks; what nobody holds any more can be seen."""


@pytest.mark.parametrize("end", ["result", "cancel"])
def test_a_call_that_is_over_holds_none_of_its_arguments(end: str, group: WorkerGroup[Gated]) -> None:
    argument = Argument()
    held = weakref.ref(argument)
    call = group.wait.options(blocking=False)(f"over by {end}", argument)
    assert call.plan.sources[1] is argument
    if end == "result":
        gate(f"over by {end}").set()
        assert call.result() == [f"over by {end}"] * 3
    else:
        call.cancel()
    del argument
    give_up = time.monotonic() + 30
    while held() is not None:
        assert time.monotonic() < give_up
        gc.collect()
    assert call.plan.sources == ()
    assert "?" in call.plan.explain()


def test_a_call_that_failed_has_let_its_arguments_go(group: WorkerGroup[Gated]) -> None:
    call = group.fail.options(blocking=False)(Argument({1}))
    with pytest.raises(KeyError):
        call.result()
    assert call.plan.sources == ()


def test_dependent_call_has_the_deadline_of_the_first(group: WorkerGroup[Gated]) -> None:
    first = group.quick.options(blocking=False, timeout=5)("x")
    first.result()
    second = group.quick.options(blocking=False, timeout=1000)(first)
    assert second.deadline.seconds <= 5
    third = group.quick.options(blocking=False, timeout=1)(second)
    assert third.deadline.seconds <= 1
    gather(second, third)


def test_lost_reply_runs_into_the_limit() -> None:
    backend = FaultyBackend(InlineBackend(), [Fault(1, "loses_reply", method="number")])
    with (
        WorkerGroup([2], Doubler, backend=backend, call_timeout=0.05) as group,
        pytest.raises(WaitTimeoutError, match="_0:1"),
    ):
        group.number().result()


def test_dying_rank_is_lost_from_then_on() -> None:
    backend = FaultyBackend(InlineBackend(), [Fault(1, "dies", after=1)])
    with WorkerGroup([2], Doubler, backend=backend) as group:
        assert group.number().result() == [0, 1]
        for _ in range(2):
            with pytest.raises(WorkerLostError, match="made to die"):
                group.number().result()
        assert group[0].number().result() == [0]


def test_rank_that_was_made_to_die_can_be_recovered() -> None:
    backend: Any = FaultyBackend(ThreadsBackend(), [Fault(1, "dies", method="number", times=1)])
    with WorkerGroup([2], Doubler, backend=backend) as group:
        with pytest.raises(WorkerLostError, match="made to die"):
            group.number().result()
        assert "rank 1 is gone: made to die" in group.why_stuck().splitlines()[2]
        assert list(backend.lost(group._members)) == [1]
        assert group.recover() == [1]
        assert backend.lost(group._members) == {}
        assert group.number().result() == [0, 1]


def test_rank_whose_reply_was_lost_is_busy_until_it_is_recovered() -> None:
    backend = FaultyBackend(ThreadsBackend(), [Fault(1, "loses_reply", method="number", times=1)])
    with WorkerGroup([2], Doubler, backend=backend, call_timeout=0.05) as group:
        with pytest.raises(WaitTimeoutError, match="_0:1"):
            group.number().result()
        with pytest.raises(BusyRankError, match=r"rank 1 .* has been inside Doubler\.number"):
            group.number()
        assert group.recover() == [1]
        assert group.number.options(timeout=30)().result() == [0, 1]


def test_late_reply_can_be_cancelled() -> None:
    backend = FaultyBackend(ThreadsBackend(), [Fault(0, "slow", seconds=3600)])
    with WorkerGroup([2], Doubler, backend=backend) as group:
        call = group.number()
        while call[0].handle.outcome is None:
            time.sleep(0.001)
        assert call.so_far().keys() <= {1}
        assert call.cancel()[0] == "running"
        with pytest.raises(CallCancelledError):
            call.result()


@pytest.mark.parametrize("seed", range(5))
def test_order_of_replies_does_not_matter(seed: int) -> None:
    with WorkerGroup([5], Doubler, backend=FaultyBackend(InlineBackend(), shuffle=seed)) as group:
        assert group.number().result() == [0, 1, 2, 3, 4]
        assert group.double(Rows(range(7))).result() == Rows(range(0, 14, 2))
        assert sorted(dict(group.number().as_they_come())) == [0, 1, 2, 3, 4]


def test_closed_group_takes_no_calls_and_pending_ones_end() -> None:
    group = WorkerGroup([2], Gated, backend="threads")
    call = group.wait.options(blocking=False)("t12")
    group.close()
    with pytest.raises(WorkerLostError, match="was closed"):
        call.result(30)
    with pytest.raises(GroupUsageError, match=r"is closed; Gated\.quick cannot be called"):
        group.quick()
