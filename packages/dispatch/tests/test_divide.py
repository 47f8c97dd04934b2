from __future__ import annotations

from typing import Annotated, Any

import pytest
from dispatch_fakes import Group, Table, plan, run, table
from fanfold.dispatch import (
    ArgumentError,
    BatchTypeError,
    Dispatch,
    DivideError,
    FanfoldError,
    Mesh,
    MeshError,
    Replicate,
    Rows,
    Shard,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)

GROUP = Group(4, Mesh.from_sizes("train", {"tp": 2, "dp": 2}))


class Trainer:
    @register(Dispatch.DP_COMPUTE_PROTO)
    def two(self, batch: Any, other: Any = None) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="error")
    def strict(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def pad(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="skip")
    def skip(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, balance="x")
    def by_column(self, batch: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, balance=lambda batch: [1] * (len(batch) + 1))
    def miscounted(self, batch: Any) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("train"))
    def two_axes(self, batch: Any, experts: Annotated[Any, Shard("tp")]) -> Any: ...


def rows_by_rank(plan_: Any, name: str = "batch") -> list[list[int]]:
    (spread,) = [spread for spread in plan_.spreads() if spread.name == name]
    return [list(plan_.rows_of(spread.piece(rank))) for rank in plan_.ranks]


def test_uneven_rows_are_split_as_evenly_as_possible() -> None:
    assert rows_by_rank(plan(Trainer.two, GROUP, table(6))) == [[0, 1], [2, 3], [4], [5]]
    assert rows_by_rank(plan(Trainer.two, GROUP, table(2))) == [[0], [1], [], []]


def test_padding_keeps_rows_where_splitting_puts_them() -> None:
    plan_ = plan(Trainer.pad, GROUP, table(6))
    assert rows_by_rank(plan_) == [[0, 1], [2, 3], [4], [5]]
    assert [plan_.padding(rank) for rank in plan_.ranks] == [0, 0, 1, 1]
    assert [len(plan_.arguments(rank)[0][0]) for rank in plan_.ranks] == [2, 2, 2, 2]


def test_padding_repeats_a_real_row() -> None:
    plan_ = plan(Trainer.pad, GROUP, table(2))
    assert [plan_.arguments(rank)[0][0]["x"] for rank in plan_.ranks] == [[0], [1], [1], [1]]
    assert [(plan_.rows(rank), plan_.padding(rank)) for rank in plan_.ranks] == [(1, 0), (1, 0), (0, 1), (0, 1)]


def test_no_rows_need_no_padding() -> None:
    plan_ = plan(Trainer.pad, GROUP, table(0))
    assert [len(plan_.arguments(rank)[0][0]) for rank in plan_.ranks] == [0] * 4
    assert run(plan_, lambda rank, batch: batch) == table(0)


def test_ranks_without_rows_are_skipped_where_the_method_says_so() -> None:
    assert plan(Trainer.skip, GROUP, table(2)).ranks == (0, 1)
    assert plan(Trainer.skip, GROUP, table(0)).ranks == (0,)
    assert plan(Trainer.skip, GROUP, table(9)).ranks == (0, 1, 2, 3)
    skipped = plan(Trainer.skip, GROUP, table(2))
    assert len(skipped.pieces()) == 2
    assert run(skipped, lambda rank, batch: batch) == table(2)


def test_a_call_without_batches_skips_nobody() -> None:
    assert plan(Trainer.skip, GROUP, 3).ranks == (0, 1, 2, 3)


def test_strict_methods_refuse_with_both_numbers_and_the_ways_out() -> None:
    plan(Trainer.strict, GROUP, table(8))
    with pytest.raises(
        DivideError,
        match=r"^Trainer\.strict\(\): got 2 rows, expected a multiple of the 4 places along axis 'dp' of mesh 'world'; "
        r"pass such a number of rows, or register the method with uneven='split' or uneven='pad'$",
    ) as caught:
        plan(Trainer.strict, GROUP, table(2))
    assert isinstance(caught.value, FanfoldError)
    assert isinstance(caught.value, ValueError)


def test_batches_of_different_length_are_refused() -> None:
    with pytest.raises(
        DivideError,
        match=r"^Trainer\.two\(\): got batches of different length \(batch has 4, other has 5 rows\), expected one "
        r"length for all that are divided together; send one that belongs to no row whole, with Replicate\(x\)$",
    ):
        plan(Trainer.two, GROUP, table(4), table(5))
    plan_ = plan(Trainer.two, GROUP, table(4), Replicate(table(5)))
    assert [len(plan_.arguments(rank)[0][1]) for rank in plan_.ranks] == [5] * 4


def test_batches_of_different_length_inside_a_container_are_named_by_path() -> None:
    with pytest.raises(DivideError, match=r"batch\['a'\] has 4, batch\['b'\]\[0\] has 3 rows"):
        plan(Trainer.two, GROUP, Shard({"a": table(4), "b": [table(3)]}))


class Wishing(Table):
    def is_padding_enabled(self) -> bool:
        return True


def test_a_batch_may_wish_to_be_padded() -> None:
    batch = Wishing({"x": [0, 1, 2, 3, 4]})
    assert [plan(Trainer.two, GROUP, batch).padding(rank) for rank in range(4)] == [0, 1, 1, 1]
    assert [plan(Trainer.strict, GROUP, batch).padding(rank) for rank in range(4)] == [0, 1, 1, 1]


def test_axes_are_divided_independently() -> None:
    plan_ = plan(Trainer.two_axes, GROUP, table(5), table(3))
    assert rows_by_rank(plan_) == [[0, 1, 2], [0, 1, 2], [3, 4], [3, 4]]
    assert rows_by_rank(plan_, "experts") == [[0, 1], [2], [0, 1], [2]]
    assert plan_.collected == (0, 2)


def test_an_axis_the_mesh_lacks_is_refused() -> None:
    with pytest.raises(MeshError, match="'batch' is to be divided along axis 'ep', which mesh 'train' does not have"):
        plan(Trainer.two_axes, GROUP, Shard(table(4), "ep"), table(4))
    with pytest.raises(MeshError, match="along axis 'tp', which mesh 'world' does not have; its axes are dp"):
        plan(Trainer.two, GROUP, Shard(table(4), "tp"))


def test_rows_are_dealt_out_by_weight() -> None:
    batch = Table({"x": [1, 9, 2, 8, 3, 7], "name": list("abcdef")})
    plan_ = plan(Trainer.by_column, Group(3), batch)
    assert rows_by_rank(plan_) == [[0, 1], [2, 3], [4, 5]]
    assert [plan_.arguments(rank)[0][0]["name"] for rank in range(3)] == [["a", "b"], ["c", "d"], ["e", "f"]]
    shuffled = Table({"x": [9, 8, 7, 1, 2, 3]})
    plan_ = plan(Trainer.by_column, Group(3), shuffled)
    assert rows_by_rank(plan_) == [[0, 3], [1, 4], [2, 5]]
    assert run(plan_, lambda rank, batch: batch) == shuffled


def test_weights_at_the_call_win_over_the_method_s() -> None:
    plan_ = plan(Trainer.by_column, Group(2), Shard(table(4), weights=[0, 0, 0, 5]))
    assert rows_by_rank(plan_) == [[3], [0, 1, 2]]
    plan_ = plan(Trainer.by_column, Group(2), Shard(table(4), weights=lambda batch: [5, 0, 0, 0]))
    assert rows_by_rank(plan_) == [[0], [1, 2, 3]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], "got 2 weights, expected one for each of 4 rows of batch"),
        ([1, 2, -3, 4], r"got weight -3\.0 for row 2 of batch, expected 0 or more"),
        ([1, 2, 3, float("nan")], "got weight nan for row 3 of batch, expected 0 or more"),
    ],
)
def test_unusable_weights_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(DivideError, match=rf"Trainer\.two\(\): {message}"):
        plan(Trainer.two, GROUP, Shard(table(4), weights=weights))


def test_methods_that_need_equal_lengths_get_balanced_runs_of_equal_length() -> None:
    weights = [9, 8, 7, 1, 1, 1]
    for uneven in ("error", "pad"):
        method = register(Dispatch.DP_COMPUTE_PROTO, uneven=uneven, balance=lambda batch: weights)(fresh())
        assert rows_by_rank(plan(method, Group(2), table(6))) == [[0, 3, 4], [1, 2, 5]]
    split = register(Dispatch.DP_COMPUTE_PROTO, balance=lambda batch: weights)(fresh())
    assert rows_by_rank(plan(split, Group(2), table(6))) == [[0, 3, 4, 5], [1, 2]]
    padded = register(Dispatch.DP_COMPUTE_PROTO, uneven="pad", balance=lambda batch: [9, 1, 1, 1, 1])(fresh())
    plan_ = plan(padded, Group(2), table(5))
    assert rows_by_rank(plan_) == [[0, 4], [1, 2, 3]]
    assert [plan_.padding(rank) for rank in range(2)] == [1, 0]


def fresh() -> Any:
    def method(self: object, batch: Any) -> Any: ...

    return method


def test_the_column_of_weights_may_be_in_any_batch_of_the_call() -> None:
    other = Table({"tokens": [1, 1, 9]})
    method = register(Dispatch.DP_COMPUTE_PROTO, balance="tokens")(lambda self, rows, batch: None)
    plan_ = plan(method, Group(2), Rows("abc"), other)
    assert rows_by_rank(plan_) == [[2], [0, 1]]
    with pytest.raises(
        DivideError,
        match=r"weights are to come from column 'tokens', which cannot be read: rows \(Rows\): TypeError\(.*\); batch "
        r"\(Table\): KeyError\('tokens'\)\. Name a column that is there, or give a function of the batch$",
    ):
        plan(method, Group(2), Rows("abc"), table(3))


def test_weights_need_a_column_and_one_source() -> None:
    with pytest.raises(DivideError, match=r"Trainer\.miscounted\(\): got 4 weights, expected one for each of 3 rows"):
        plan(Trainer.miscounted, GROUP, table(3))
    with pytest.raises(DivideError, match=r"got weights on arguments batch, other, expected one of them"):
        plan(Trainer.two, GROUP, Shard(table(1), weights=[1]), Shard(table(1), weights=[1]))


class Halves:
    """Rows that can be cut and never put together."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, rows: slice) -> Halves:
        return self

    def chunk(self, chunks: int) -> list[Halves]:
        return [self] * chunks


@pytest.mark.parametrize("value", [Halves(), Shard(Halves())])
def test_a_batch_type_without_concat_is_not_sent_whole_in_silence(value: Any) -> None:
    with pytest.raises(
        BatchTypeError,
        match=r"^Trainer\.two\(\): argument 'batch' is to be divided; got Halves, which has rows and chunk but no "
        r"concat; add it, use register_batch_type, or send it whole with Replicate\(x\)$",
    ):
        plan(Trainer.two, GROUP, value)
    halves = Halves()
    assert plan(Trainer.two, GROUP, Replicate(halves)).arguments(3)[0][0] is halves


def test_a_list_that_holds_no_batch_is_not_guessed_at() -> None:
    with pytest.raises(
        ArgumentError,
        match=r"Trainer\.two\(\): argument 'batch' is marked Shard; got list, which is no batch and holds none; wrap a "
        r"plain list in Rows\(\[\.\.\.\]\), or teach its type with register_batch_type",
    ):
        plan(Trainer.two, GROUP, Shard([1, 2, 3]))
    assert rows_by_rank(plan(Trainer.two, GROUP, Rows("abc"))) == [[0], [1], [2], []]
