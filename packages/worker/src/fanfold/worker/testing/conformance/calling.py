# ruff: noqa: D102, PLR2004  # a test says by its name what it shows, and exact values are its point
"""Arguments reach the ranks, and results come back."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from fanfold.dispatch import ArgumentError, DivideError, PerRank, Rows
from fanfold.worker import ClassWithInitArgs, MeshError, UnknownMethodError
from fanfold.worker.testing.abilities import Ability, needs
from fanfold.worker.testing.conformance.suite import Group, Suite
from fanfold.worker.testing.workers import Probe, Rendezvous, Talker

if TYPE_CHECKING:
    from pathlib import Path


class Calling(Suite):
    """Tests of arguments, results, and who is called."""

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


def _rank_of(worker: Probe, base: int) -> int:
    return base + worker.rank


def _double_rows(worker: Probe, rows: Rows[int]) -> Rows[int]:  # noqa: ARG001  # a function of the worker
    return Rows(2 * row for row in rows)
