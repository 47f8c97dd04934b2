from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from dispatch_fakes import Group, Table, plan, run, table
from fanfold.dispatch import (
    CollectError,
    Dispatch,
    FanfoldError,
    Mesh,
    Rows,
    Shard,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    register_batch_type,
)
from fanfold.dispatch.functions import collect_dp_compute_data_proto, dispatch_dp_compute_data_proto

if TYPE_CHECKING:
    from collections.abc import Iterator

# Data-parallel rank 0 is run by ranks 2 and 3, and collected from rank 2; rank 1 is collected from rank 1.
GROUP = Group(4, Mesh.from_dp_ranks("train", [1, 1, 0, 0], [False, True, True, False]))


class Trainer:
    @register(Dispatch.DP_COMPUTE_PROTO)
    def joined(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def padded(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_METRIC, uneven="pad")
    def metric(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, balance="x")
    def balanced(self, batch: Any) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("train"))
    def nd(self, batch: Any) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("train"), merge={"loss": "mean", "tokens": "sum"})
    def merged(self, batch: Any) -> Any: ...

    @register(
        {
            "dispatch_fn": dispatch_dp_compute_data_proto,
            "collect_fn": lambda group, outputs: (group.world_size, outputs),
        },
        uneven="pad",
    )
    def half_custom(self, batch: Any) -> Any: ...

    @register(Dispatch.ONE_TO_ALL, merge="max")
    def highest(self) -> Any: ...


def test_batches_are_put_together_in_data_parallel_order() -> None:
    plan_ = plan(Trainer.nd, GROUP, table(5))
    assert plan_.collected == (2, 1)
    assert plan_.collect({0: None, 1: table(1), 2: table(2), 3: None}).columns["x"] == [0, 1, 0]
    assert run(plan_, lambda rank, batch: batch) == table(5)


def test_other_values_are_a_list_in_data_parallel_order() -> None:
    assert run(plan(Trainer.nd, GROUP, table(5)), lambda rank, batch: rank) == [2, 1]
    assert run(plan(Trainer.joined, GROUP, table(5)), lambda rank, batch: None) == [None] * 4
    assert run(plan(Trainer.joined, GROUP, table(5)), lambda rank, batch: np.float64(rank)) == [0, 1, 2, 3]


def test_padding_is_removed_exactly() -> None:
    for rows in range(9):
        assert run(plan(Trainer.padded, GROUP, table(rows)), lambda rank, batch: batch) == table(rows)


def test_results_per_rank_are_never_cut() -> None:
    assert run(plan(Trainer.metric, GROUP, table(5)), lambda rank, batch: [len(batch)]) == [[2]] * 4
    assert run(plan(Trainer.padded, GROUP, table(5)), lambda rank, batch: {"rows": len(batch)}) == [{"rows": 2}] * 4


def test_a_result_that_padding_cannot_be_found_in_is_refused_and_kept() -> None:
    plan_ = plan(Trainer.padded, GROUP, table(5))
    with pytest.raises(
        CollectError,
        match=r"^Trainer\.padded\(\): rank 1 got 2 rows, of which the last are padding, and returned 6; expected a row "
        r"for each, .* Return one row per row, or register the method with uneven='split' and without balance$",
    ) as caught:
        run(plan_, lambda rank, batch: Table.concat([batch] * 3))
    assert caught.value.results == {1: Table({"x": [2, 2] * 3, "name": ["row 2", "row 2"] * 3})}
    # Without padding, more rows out than in are no problem.
    assert len(run(plan(Trainer.padded, GROUP, table(8)), lambda rank, batch: Table.concat([batch] * 3))) == 24
    assert len(run(plan(Trainer.joined, GROUP, table(5)), lambda rank, batch: Table.concat([batch] * 3))) == 15


def test_rows_dealt_out_by_weight_come_back_in_the_caller_s_order() -> None:
    batch = Table({"x": [1, 9, 2, 8, 3, 7, 4]})
    assert run(plan(Trainer.balanced, GROUP, batch), lambda rank, part: part) == batch
    with pytest.raises(CollectError, match=r"rank 0 got \d rows, dealt out by weight, and returned 0"):
        run(plan(Trainer.balanced, GROUP, batch), lambda rank, part: part[:0])


@pytest.mark.parametrize(
    ("dispatch", "collect", "places"),
    [
        (
            make_nd_compute_dataproto_dispatch_fn("train")["dispatch_fn"],
            collect_dp_compute_data_proto,
            r"\[1, 1, 0, 0\]",
        ),
        (dispatch_dp_compute_data_proto, make_nd_compute_dataproto_dispatch_fn("train")["collect_fn"], r"\[2, 1\]"),
    ],
)
def test_halves_of_different_modes_lose_or_double_no_rows(dispatch: Any, collect: Any, places: str) -> None:
    @register({"dispatch_fn": dispatch, "collect_fn": collect})
    def mixed(self: object, batch: Any) -> Any: ...

    with pytest.raises(
        CollectError, match=rf"Trainer\.mixed\(\): batches came from the places {places} .*functions of one mode$"
    ) as caught:
        run(plan(mixed, GROUP, table(4)), lambda rank, batch: batch)
    assert len(caught.value.results) >= 2
    assert len(run(plan(mixed, GROUP, table(4)), lambda rank, batch: None)) >= 2


def test_an_error_of_concat_says_whose_results_they_were() -> None:
    class Ragged(Table):
        @staticmethod
        def concat(tables: Any) -> Table:
            raise KeyError("missing column")

    with pytest.raises(KeyError, match="missing column") as caught:
        run(plan(Trainer.nd, GROUP, table(4)), lambda rank, batch: Ragged(batch.columns))
    assert caught.value.__notes__ == ["Trainer.nd(): while the results of ranks [2, 1] were put together"]


def test_a_missing_rank_is_named() -> None:
    plan_ = plan(Trainer.nd, GROUP, table(5))
    with pytest.raises(
        CollectError, match=r"Trainer\.nd\(\): got no result of ranks \[1\], expected one of each of \[2, 1\]"
    ) as caught:
        plan_.collect({2: table(2), 0: table(1)})
    assert set(caught.value.results) == {0, 2}
    assert isinstance(caught.value, FanfoldError)


@pytest.mark.parametrize("odd", [None, 3, Rows([1])])
def test_a_mix_of_results_is_refused_by_rank(odd: Any) -> None:
    plan_ = plan(Trainer.nd, GROUP, table(5))
    kind = type(odd).__name__
    with pytest.raises(
        CollectError,
        match=rf"Trainer\.nd\(\): results cannot be put together, got rank 2: Table, rank 1: {kind}; expected one",
    ) as caught:
        plan_.collect({2: table(2), 1: odd})
    assert caught.value.results == {2: table(2), 1: odd}


def test_a_generator_is_no_batch() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(CollectError, match="results cannot be put together, got rank 2: generator, rank 1: generator"):
        run(plan(Trainer.nd, GROUP, table(5)), lambda rank, batch: numbers())


class Child(Table):
    pass


def test_subclasses_of_one_batch_class_go_together() -> None:
    plan_ = plan(Trainer.nd, GROUP, table(3))
    assert plan_.collect({2: table(2), 1: Child({"x": [7], "name": ["c"]})}).columns["x"] == [0, 1, 7]


def test_dicts_are_merged_by_the_method_s_rules() -> None:
    plan_ = plan(Trainer.merged, GROUP, table(5))
    result = run(plan_, lambda rank, batch: {"loss": float(rank), "tokens": len(batch), "rank": rank})
    assert result == {"loss": 1.5, "tokens": 5, "rank": [2, 1]}
    assert run(plan(Trainer.highest, GROUP), lambda rank: rank) == 3


def test_rules_for_batches_need_a_batch_type_that_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CollectError, match=r"for batch types that have merge rules; got Table\. Leave merge= away"):
        run(plan(Trainer.merged, GROUP, table(5)), lambda rank, batch: batch)
    monkeypatch.setattr("fanfold.dispatch.batches._registered", {})
    monkeypatch.setattr("fanfold.dispatch.batches._found", {})
    register_batch_type(Table, merge=lambda parts, rules: (len(parts), rules))
    plan_ = plan(Trainer.merged, GROUP, table(5))
    assert run(plan_, lambda rank, batch: batch) == (2, {"loss": "mean", "tokens": "sum"})


def test_a_custom_collect_function_gets_outputs_without_padding() -> None:
    plan_ = plan(Trainer.half_custom, GROUP, table(5))
    assert run(plan_, lambda rank, batch: batch["x"]) == (4, [[0, 1], [2, 2], [3, 3], [4, 4]])
    world_size, outputs = run(plan_, lambda rank, batch: batch)
    assert world_size == 4
    assert Table.concat(outputs) == table(5)


def test_a_custom_collect_function_cannot_restore_an_order() -> None:
    with pytest.raises(
        TypeError, match=r"rows are dealt out by weight, and a custom collect function cannot put results back"
    ):
        plan(Trainer.half_custom, GROUP, Shard(table(4), weights="x"))
