"""Batches that are not here yet: a call that divides them evenly is planned without waiting for any of them."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from dispatch_fakes import Group, Later, Table, plan, run, table
from fanfold.dispatch import (
    Dispatch,
    DivideError,
    Mesh,
    Piece,
    Replicate,
    Shard,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from hypothesis import given
from hypothesis import strategies as st

GROUP = Group(4, Mesh.from_sizes("train", {"tp": 2, "dp": 2}))


class Trainer:
    @register(Dispatch.DP_COMPUTE_PROTO)
    def every(self, batch: Any, other: Any = None) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("train"))
    def nd(self, batch: Any, lr: float = 0.1) -> Any: ...

    @register(Dispatch.ONE_TO_ALL)
    def marked(self, both: Annotated[Any, Shard]) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def padded(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="error")
    def strict(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="skip")
    def skipping(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, balance=lambda batch: [1] * len(batch))
    def balanced(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, reads=["x", "absent"])
    def reading(self, batch: Any) -> Any: ...


def never() -> Table:
    raise AssertionError("planning must not wait")


def test_planning_waits_for_nothing() -> None:
    plan_ = plan(Trainer.nd, GROUP, Later(never), lr=0.5)
    first, second = (Piece(0, axis="dp", part=(place, 2)) for place in (0, 1))
    assert plan_.pieces() == (first, second, Piece(1))
    assert [plan_.call_for(rank)[0] for rank in range(4)] == [(first,), (first,), (second,), (second,)]
    assert [piece.kind for piece in plan_.pieces()] == ["part", "part", "whole"]
    assert isinstance(plan_.value(second), Later)
    assert [(plan_.rows(rank), plan_.padding(rank)) for rank in plan_.ranks] == [(None, 0)] * 4
    assert plan_.explain().splitlines()[1:] == [
        "rank  at         batch        lr     padding  bytes  collected",
        "0     dp=0 tp=0  part 0 of 2  whole  0        ?      #0",
        "1     dp=0 tp=1  part 0 of 2  whole  0        ?",
        "2     dp=1 tp=0  part 1 of 2  whole  0        ?      #1",
        "3     dp=1 tp=1  part 1 of 2  whole  0        ?",
    ]
    assert plan_.as_data()["ranks"][2]["arguments"] == {"batch": "part 1 of 2", "lr": "whole"}


@given(st.integers(0, 40), st.integers(1, 9))
def test_every_rank_gets_the_rows_that_it_would_get_of_a_batch_that_is_here(rows: int, ranks: int) -> None:
    here, later = (plan(Trainer.every, Group(ranks), batch) for batch in (table(rows), Later(lambda: table(rows))))
    assert [later.arguments(rank)[0][0].get() for rank in range(ranks)] == [
        here.arguments(rank)[0][0] for rank in range(ranks)
    ]
    assert run(later, lambda _, batch: batch.get()) == table(rows)


def test_results_of_any_length_are_collected_in_order() -> None:
    plan_ = plan(Trainer.nd, GROUP, Later(lambda: table(5)))
    assert run(plan_, lambda _, batch: Table.concat([batch.get(), batch.get()]))["x"] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]


def test_inside_a_container_and_twice_in_one_call() -> None:
    batch = Later(never)
    plan_ = plan(Trainer.marked, GROUP, {"rows": batch, "name": "n"})
    got = plan_.value(plan_.pieces()[3])
    assert (type(got["rows"]), got["name"]) == (Later, "n")
    assert [piece.part for piece in plan(Trainer.every, GROUP, batch, batch).pieces()] == [
        (place, 4) for place in range(4)
    ]


@pytest.mark.parametrize("method", [Trainer.padded, Trainer.strict, Trainer.skipping, Trainer.balanced])
def test_where_the_number_of_rows_matters_they_are_counted(method: Any) -> None:
    batch = Later(lambda: table(8))
    plan_ = plan(method, GROUP, batch)
    assert batch.waited >= 1
    assert [plan_.rows(rank) for rank in plan_.ranks] == [2, 2, 2, 2]


def test_two_batches_are_counted_so_that_different_lengths_are_refused() -> None:
    with pytest.raises(DivideError, match=r"different length \(batch has 4, other has 5 rows\)"):
        plan(Trainer.every, GROUP, Later(lambda: table(4)), Later(lambda: table(5)))
    with pytest.raises(DivideError, match=r"different length \(batch has 4, other has 5 rows\)"):
        plan(Trainer.every, GROUP, Later(lambda: table(4)), table(5))
    assert plan(Trainer.every, GROUP, Later(never), Replicate(table(5))).rows(0) is None


def test_columns_that_cannot_be_known_are_not_asked_for() -> None:
    assert plan(Trainer.reading, GROUP, Later(never)).pieces()[0].columns == ("x", "absent")


def test_cutting_waits_for_nothing_either() -> None:
    asked = 0

    def count() -> Table:
        nonlocal asked
        asked += 1
        return table(2000)

    plan_ = plan(Trainer.every, Group(2000), Later(count))
    assert len([plan_.value(piece) for piece in plan_.pieces()]) == 2000
    assert asked == 0
