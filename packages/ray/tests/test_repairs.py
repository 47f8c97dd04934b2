from __future__ import annotations

import dataclasses
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import ray
from cluster_state import until
from fanfold.ray import (
    CollectiveGroupError,
    FailurePolicy,
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    StaleResultError,
    attach,
)
from fanfold.ray.repairs import Repairs, as_policy
from fanfold.worker import GroupCallError, GroupUsageError, WorkerLostError
from sample_workers import Plain, Rejoining

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.cluster_utils import Cluster


@pytest.fixture
def pool(cluster: Cluster) -> Iterator[RayResourcePool]:
    with RayResourcePool([1, 1], cpus_per_process=0.5) as places:
        yield places


def end(group: RayWorkerGroup[Any], rank: int) -> None:
    pid = group.placement()[rank].pid
    os.kill(pid, signal.SIGKILL)


# Decisions


def test_what_is_no_policy_is_refused() -> None:
    for wrong in ("retry", 3, None):
        with pytest.raises(GroupUsageError, match="on_failure is 'raise', 'replace', 'restart_all', a function"):
            as_policy(wrong)  # type: ignore[arg-type]
    with pytest.raises(GroupUsageError, match="have to be positive"):
        FailurePolicy("replace", limit=0)
    with pytest.raises(GroupUsageError, match="within is a number of seconds"):
        FailurePolicy("replace", within="soon")
    policy = FailurePolicy("replace", limit=2)
    assert as_policy(policy) is policy
    assert as_policy("restart_all") == FailurePolicy("restart_all")


def test_a_limit_counts_repairs_of_the_span_that_is_given() -> None:
    policy = FailurePolicy("replace", limit=2, within="1m")
    assert not policy.exhausted([0.0], 1.0)
    assert policy.exhausted([0.0, 1.0], 60.0)
    assert not policy.exhausted([0.0, 1.0], 61.5)
    assert dataclasses.replace(policy, within=None).exhausted([0.0, 1.0], 1e9)


class _Group:
    """What a policy asks of a group."""

    def __init__(self, error: Exception | None = None) -> None:
        self.done: list[Any] = []
        self._error = error

    def replace(self, ranks: Any, timeout: float) -> dict[int, int]:
        self.done.append(("replace", tuple(ranks), timeout))
        if self._error is not None:
            raise self._error
        return dict.fromkeys(ranks, 1)

    def restart_all(self, timeout: float) -> dict[int, int]:
        self.done.append(("restart_all", timeout))
        return {0: 1, 1: 1}


def report(*ranks: int) -> WorkerLostError:
    error = WorkerLostError("gone")
    error.ranks = ranks
    return error


def test_a_policy_says_in_words_what_it_did_and_stops_at_its_limit() -> None:
    group: Any = _Group()
    repairs = Repairs(FailurePolicy("replace", limit=2, timeout=9.0))
    assert repairs.react(group, report(1)) == "started anew: rank 1 (generation 1)"
    assert repairs.react(group, report(0, 1)) == "started anew: rank 0 (generation 1), rank 1 (generation 1)"
    assert repairs.react(group, report(1)) == (
        "nothing was started anew: 2 repairs are the limit of its failure policy"
    )
    assert group.done == [("replace", (1,), 9.0), ("replace", (0, 1), 9.0)]


def test_a_function_decides_or_does_it_itself() -> None:
    group: Any = _Group()
    seen: list[Any] = []

    def decide(which: Any, error: WorkerLostError) -> Any:
        seen.append((which is group, error.ranks))
        return {1: "restart_all", 2: "raise", 3: None, 4: "again"}[error.ranks[0]]

    repairs = Repairs(FailurePolicy(decide, limit=9))
    assert repairs.react(group, report(1)).startswith("all ranks were started anew: rank 0 (generation 1)")
    assert repairs.react(group, report(2)) == ""
    assert repairs.react(group, report(3)) == "its failure policy has dealt with it"
    assert "it said 'again'" in repairs.react(group, report(4))
    assert seen == [(True, (rank,)) for rank in (1, 2, 3, 4)]
    broken: Any = _Group(KeyError("no room"))
    assert repairs.policy.limit == 9
    assert Repairs(as_policy("replace")).react(broken, report(1)) == (
        "and its failure policy failed: KeyError: 'no room'"
    )


# On a cluster


def test_a_replaced_rank_has_its_place_its_name_and_a_generation(pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, Rejoining, name_prefix="r") as group:
        before, pids = group.placement(), group.pid()
        end(group, 1)
        assert group.replace(1) == {1: 1}
        after = group.placement()
        assert [place.generation for place in after] == [0, 1]
        assert [(place.name, place.node_id, place.bundle_index) for place in after] == [
            (place.name, place.node_id, place.bundle_index) for place in before
        ]
        assert group.pid()[0] == pids[0]
        assert group.pid()[1] != pids[1]
        assert group.news() == [[{1: 1}], [{1: 1}]]
        assert group.replace([0, 1]) == {0: 1, 1: 2}
        assert group.news() == [[{0: 1, 1: 2}]] * 2
        with pytest.raises(GroupUsageError, match="has no rank 2; its ranks are 0 to 1"):
            group.replace(2)


def test_results_of_the_old_one_are_refused(pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, Plain, name_prefix="r") as group:
        call = group.add.options(blocking=False)(1)
        ray.wait(list(call), num_returns=2)
        kept = group.add.options(blocking=False)(1)
        assert kept.result() == [2, 2]
        group.replace(1)
        with pytest.raises(StaleResultError, match=r"comes from rank 1 \(rPlain_1:0, pid \d+\) of generation 0"):
            call.result()
        assert kept.result() == [2, 2]
        assert group.add(1) == [3, 1]


def test_a_rank_alone_is_not_started_anew_where_others_are_bound_to_it(pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, Plain, collectives=True) as group:
        old = group.where()[0]["MASTER_PORT"]
        end(group, 1)
        for way in (lambda: group.replace(1), lambda: group.recover([1])):
            with pytest.raises(CollectiveGroupError, match=r"rank 1 of .* made with collectives.* restart_all\(\)"):
                way()
        assert group.restart_all() == {0: 1, 1: 1}
        assert [row["RANK"] for row in group.where()] == ["0", "1"]
        assert len({row["MASTER_PORT"] for row in group.where()} | {old}) == 2


def test_a_torch_process_group_is_noticed(pool: RayResourcePool) -> None:
    pytest.importorskip("torch")
    with RayWorkerGroup(pool, Rejoining, name_prefix="r", start_timeout=120) as group:
        assert group.bind_together() == [True, True]
        end(group, 1)
        with pytest.raises(CollectiveGroupError, match="rank 0 is a member of a torch process group"):
            group.replace(1)
        assert group.restart_all() == {0: 1, 1: 1}
        assert group.bind_together() == [True, True]


def test_a_policy_repairs_before_the_caller_hears_of_it(pool: RayResourcePool) -> None:
    policy = FailurePolicy("replace", limit=1)
    with RayWorkerGroup(pool, Rejoining, name_prefix="r", on_failure=policy) as group:
        with pytest.raises(WorkerLostError, match=r"rank 1, pid .*; started anew: rank 1 \(generation 1\)"):
            group.fall(1)
        assert group.fall(-1) == [0, 1]
        assert group.news() == [[{1: 1}], [{1: 1}]]
        with pytest.raises(WorkerLostError, match="1 repairs are the limit of its failure policy"):
            group.fall(0)
        with pytest.raises(WorkerLostError, match="rank 0, pid"):
            group.fall(-1)


def test_two_calls_that_meet_one_death_repair_once(pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, Rejoining, name_prefix="r", on_failure="restart_all") as group:
        calls = [group.fall.options(blocking=False)(rank) for rank in (1, -1)]
        for call in calls:
            with pytest.raises(WorkerLostError):
                call.result()
        assert group.placement()[1].generation == 1
        assert group.fall(-1) == [0, 1]


def test_errors_of_methods_are_no_failures_of_ranks(pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, Plain, name_prefix="r", on_failure="restart_all") as group:
        group.add(1)
        with pytest.raises(KeyError):
            group.fail_on(1, "key")
        assert group.add(1) == [2, 2]


def test_a_detached_group_is_found_with_its_new_rank(cluster: Cluster) -> None:
    pool = RayResourcePool([1, 1], cpus_per_process=0.5, detached=True)
    group = RayWorkerGroup(pool, Plain, name_prefix="r", detached=True)
    group.add(1)
    end(group, 1)
    group.replace(1)
    found = attach("r")
    assert found.add(1) == [2, 1]
    assert [place.generation for place in found.placement()] == [0, 1]
    with pytest.raises(GroupUsageError, match="started by others"):
        found.replace(1)
    group.stop()


def test_who_has_attached_goes_on_with_the_new_rank(cluster: Cluster) -> None:
    pool = RayResourcePool([1, 1], cpus_per_process=0.5, detached=True)
    group = RayWorkerGroup(pool, Plain, name_prefix="r", detached=True)
    client = attach("r")
    assert client.add(1) == [1, 1]
    end(group, 1)
    with pytest.raises(WorkerLostError) as early:
        client.add(1)
    assert "started anew" not in str(early.value)
    group.replace(1)
    with pytest.raises(
        WorkerLostError, match=r"owner has started anew: rank 1 \(generation 1\); further calls go there"
    ):
        client.add(0)
    assert client.add(1) == [3, 1]
    assert [place.generation for place in client.placement()] == [0, 1]
    assert client.why_stuck() == group.why_stuck()
    group.stop()


def test_the_class_is_given_with_its_arguments_again(pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, RayClassWithInitArgs(Plain, start=5), name_prefix="r") as group:
        group.replace(1)
        assert group.add(0) == [5, 5]


def test_a_lost_rank_is_still_told_as_a_group_call_error(pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, Rejoining, on_failure="replace") as group:
        began = time.monotonic()
        with pytest.raises(GroupCallError) as caught:
            group.fall(0)
        assert [failure.lost for failure in caught.value.failures][:1] == [True]
        assert time.monotonic() - began < 60
        until(lambda: group.fall(-1) == [0, 1])
