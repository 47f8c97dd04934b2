from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from dispatch_fakes import Group, Table, plan, run, table
from fanfold.dispatch import (
    ArgumentError,
    DirectCallError,
    Dispatch,
    DivideError,
    Execute,
    FanfoldError,
    Mesh,
    MeshError,
    PerRank,
    Piece,
    Replicate,
    Rows,
    Shard,
    make_nd_compute_dataproto_dispatch_fn,
    plan_call,
    register,
    spec_of,
)

MESH = Mesh.from_sizes("train", {"tp": 2, "dp": 2})
GROUP = Group(4, MESH)


@dataclass
class State:
    tokens: Any
    step: int


class Trainer:
    @register(Dispatch.RANK_ZERO)
    def zero(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(Dispatch.ALL_TO_ALL, Execute.RANK_ZERO)
    def all_on_zero(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, Execute.RANK_ZERO)
    def rows_on_zero(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(Dispatch.ONE_TO_ALL)
    def one(self, *args: Any, **kwargs: Any) -> Any: ...

    @register()
    def all(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE)
    def lists(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO)
    def rows(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def apply(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_METRIC)
    def metric(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(Dispatch.DIRECT_ROLLOUT_METHOD)
    def generate(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("train"))
    def nd(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("train", axis="tp", collect={"dp": -1}))
    def nd_tp(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("absent"))
    def nd_absent(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, reads=["x", "y"])
    def reading(self, *args: Any, **kwargs: Any) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("train"))
    def marked(
        self,
        batch: Annotated[Any, Shard],
        whole: Annotated[Any, Replicate] = None,
        each: Annotated[Any, PerRank] = None,
        state: Annotated[Any, Shard] = None,
    ) -> Any: ...


def arguments_by_rank(method: Any, *args: Any, **kwargs: Any) -> list[Any]:
    plan_ = plan(method, GROUP, *args, **kwargs)
    return [plan_.arguments(rank) for rank in plan_.ranks]


def test_one_to_all_sends_every_argument_whole() -> None:
    values = ([1, 2, 3, 4], table(4), None)
    assert arguments_by_rank(Trainer.one, *values, x=5) == [(values, {"x": 5})] * 4
    plan_ = plan(Trainer.one, GROUP, values[0], values[1])
    assert plan_.arguments(3)[0][1] is values[1]  # the caller's own object, not a copy


def test_one_object_is_one_piece_however_often_it_is_passed() -> None:
    batch = table(2)
    plan_ = plan(Trainer.one, GROUP, batch, again=batch)
    assert plan_.pieces() == (Piece(0),)
    assert plan_.sources == (batch,)


@pytest.mark.parametrize("method", [Trainer.zero, Trainer.all_on_zero, Trainer.rows_on_zero])
def test_with_rank_zero_everything_goes_whole_to_one_rank(method: Any) -> None:
    plan_ = plan(method, GROUP, [1, 2, 3, 4], table(5), k=3)
    assert (plan_.ranks, plan_.collected) == ((0,), (0,))
    assert plan_.arguments(0) == (([1, 2, 3, 4], table(5)), {"k": 3})
    assert plan_.collect({0: "value"}) == "value"


def test_all_to_all_scatters_lists_of_world_size() -> None:
    assert arguments_by_rank(Trainer.all, [1, 2, 3, 4], x=(5, 6, 7, 8)) == [
        ((1,), {"x": 5}),
        ((2,), {"x": 6}),
        ((3,), {"x": 7}),
        ((4,), {"x": 8}),
    ]
    assert arguments_by_rank(Trainer.all) == [((), {})] * 4
    assert arguments_by_rank(Trainer.all, None, x=[1, 2, 3, 4])[2] == ((None,), {"x": 3})
    batch = table(4)
    assert arguments_by_rank(Trainer.all, batch, 3)[1] == ((batch, 3), {})


def test_all_to_all_refuses_other_lengths_and_mixes() -> None:
    with pytest.raises(
        DivideError,
        match=r"^Trainer\.all\(\): argument 'args\[0\]' has one item per rank; got a list of 3, expected a list of 4 "
        r"\(the ranks of this call\); send it whole with Replicate\(x\)$",
    ):
        plan(Trainer.all, GROUP, [1, 2, 3])
    with pytest.raises(ArgumentError, match=r"got lists \(args\[0\]\) and other values \(x\) in one call"):
        plan(Trainer.all, GROUP, [1, 2, 3, 4], x=1)
    assert arguments_by_rank(Trainer.all, Replicate([1, 2, 3]), x=1)[0] == (([1, 2, 3],), {"x": 1})
    assert arguments_by_rank(Trainer.all, PerRank((1, 2, 3, 4)), x=1)[3] == ((4,), {"x": 1})


def test_dp_compute_takes_lists_in_keywords_alone_too() -> None:
    assert arguments_by_rank(Trainer.lists, x=[1, 2, 3, 4])[3] == ((), {"x": 4})
    assert arguments_by_rank(Trainer.lists, (1, 2, 3, 4), None)[1] == ((2, None), {})
    assert arguments_by_rank(Trainer.lists) == [((), {})] * 4
    with pytest.raises(DivideError, match=r"argument 'x' has one item per rank; got int, expected a list of 4"):
        plan(Trainer.lists, GROUP, x=3)


def test_equal_items_of_a_list_are_placed_once_only_if_they_are_one_object() -> None:
    shared, other = [1], [1]
    plan_ = plan(Trainer.lists, GROUP, [shared, other, shared, other])
    assert len(plan_.pieces()) == 2
    assert [plan_.arguments(rank)[0][0] is shared for rank in range(4)] == [True, False, True, False]


def test_batches_are_divided_and_the_rest_goes_whole() -> None:
    got = arguments_by_rank(Trainer.rows, table(4), 0.1, [1, 2, 3, 4], k=None)
    assert got[2] == ((Table({"x": [2], "name": ["row 2"]}), 0.1, [1, 2, 3, 4]), {"k": None})
    assert arguments_by_rank(Trainer.rows, batch=Rows("abcd"))[1] == ((), {"batch": Rows("b")})
    assert arguments_by_rank(Trainer.rows) == [((), {})] * 4


def test_a_function_first() -> None:
    got = arguments_by_rank(Trainer.apply, len, table(4), k=1)
    assert got[1] == ((len, Table({"x": [1], "name": ["row 1"]})), {"k": 1})
    with pytest.raises(
        ArgumentError, match=r"Trainer\.apply\(\): got Table, expected a function as the first positional"
    ):
        plan(Trainer.apply, GROUP, table(4))
    with pytest.raises(ArgumentError, match="got no positional argument, expected a function"):
        plan(Trainer.apply, GROUP, batch=table(4))


def test_metrics_come_back_as_a_list() -> None:
    assert run(plan(Trainer.metric, GROUP, table(6)), lambda rank, batch: batch["x"]) == [[0, 1], [2, 3], [4], [5]]


def test_direct_methods_are_not_called_through_the_group() -> None:
    with pytest.raises(
        DirectCallError, match=r"^Trainer\.generate\(\): a method of this mode is called on a worker's own handle"
    ):
        plan(Trainer.generate, GROUP)


def test_an_nd_call_repeats_rows_along_the_other_axes() -> None:
    plan_ = plan(Trainer.nd, GROUP, table(3), lr=0.1)
    assert [plan_.call_for(rank)[0] for rank in range(4)] == [
        (Piece(0, 0, 2, axis="dp"),),
        (Piece(0, 0, 2, axis="dp"),),
        (Piece(0, 2, 3, axis="dp"),),
        (Piece(0, 2, 3, axis="dp"),),
    ]
    assert plan_.pieces() == (Piece(0, 0, 2, axis="dp"), Piece(0, 2, 3, axis="dp"), Piece(1))
    assert plan_.collected == (0, 2)


def test_an_nd_call_along_another_axis_collected_elsewhere() -> None:
    plan_ = plan(Trainer.nd_tp, GROUP, table(3))
    assert [plan_.rows(rank) for rank in range(4)] == [2, 1, 2, 1]
    assert plan_.collected == (2, 3)
    assert run(plan_, lambda rank, batch: batch) == table(3)


def test_a_mesh_that_does_not_cover_the_group_is_refused() -> None:
    with pytest.raises(
        MeshError, match=r"mesh 'train' does not cover the group of 6 ranks: ranks 4, 5 have no place in it"
    ):
        plan(Trainer.nd, Group(6, MESH), table(3))
    with pytest.raises(KeyError):  # the group's own word for a mesh it does not have
        plan(Trainer.nd_absent, GROUP, table(3))


def test_marks_on_parameters_and_at_the_call() -> None:
    state = State(table(3), 7)
    got = arguments_by_rank(Trainer.marked, {"b": table(3), "c": 1}, table(9), [1, 2, 3, 4], state)
    last = Table({"x": [2], "name": ["row 2"]})
    assert got[3] == (({"b": last, "c": 1}, table(9), 4, State(last, 7)), {})
    assert state == State(table(3), 7)
    assert arguments_by_rank(Trainer.marked, table(3))[2] == ((last,), {})
    assert arguments_by_rank(Trainer.marked, table(3), each=None)[2] == ((last,), {"each": None})
    assert arguments_by_rank(Trainer.marked, Replicate(table(3)), Shard(table(1)))[0] == ((table(3), table(1)), {})
    assert arguments_by_rank(Trainer.one, Shard(Rows("abcde")))[0] == ((Rows("ab"),), {})


def test_columns_that_are_read_are_the_only_ones_that_travel() -> None:
    batch = Table({"x": [1, 2], "name": ["a", "b"], "y": [3, 4]})
    got = arguments_by_rank(Trainer.reading, batch, Replicate(batch), 3)
    assert got[1] == ((Table({"x": [2], "y": [4]}), Table({"x": [1, 2], "y": [3, 4]}), 3), {})
    assert arguments_by_rank(Trainer.reading, batch, Rows("ab"))[0][0][1] == Rows("a")  # no columns: whole rows
    assert arguments_by_rank(Trainer.reading, 3)[0] == ((3,), {})


def test_columns_that_no_batch_has_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(
        ArgumentError, match=r"^Trainer\.reading\(\): reads= names columns x, y, which no batch of this call has"
    ):
        plan(Trainer.reading, GROUP, Rows("abcd"))


def test_ranks_can_be_a_slice() -> None:
    spec = spec_of(Trainer.nd)
    assert spec is not None
    plan_ = plan_call(spec, Trainer.nd, GROUP, (table(3),), {}, ranks=MESH.select(dp=1))
    assert (plan_.ranks, plan_.collected, plan_.world_size) == ((2, 3), (2,), 4)
    assert plan_.arguments(3)[0][0] == table(3)
    plan_ = plan_call(spec, Trainer.nd, GROUP, (table(3),), {}, ranks=[3, 1])
    assert (plan_.ranks, plan_.collected) == ((1, 3), (1, 3))
    assert [plan_.rows(rank) for rank in (1, 3)] == [2, 1]
    assert plan_.label == f"{Trainer.nd.__qualname__}()"


def test_lists_fit_the_slice() -> None:
    spec = spec_of(Trainer.lists)
    assert spec is not None
    plan_ = plan_call(spec, Trainer.lists, GROUP, (["a", "b"],), {}, ranks=[1, 3])
    assert [plan_.arguments(rank)[0] for rank in plan_.ranks] == [("a",), ("b",)]
    with pytest.raises(DivideError, match=r"got a list of 4, expected a list of 2 \(the ranks of this call\)"):
        plan_call(spec, Trainer.lists, GROUP, ([1, 2, 3, 4],), {}, ranks=[1, 3])


@pytest.mark.parametrize("ranks", [[], [4], [-1], [1, 1]])
def test_ranks_that_are_no_slice_are_refused(ranks: list[int]) -> None:
    spec = spec_of(Trainer.one)
    assert spec is not None
    with pytest.raises(ArgumentError, match=r"got ranks \[.*\], expected at least one, each once, of 0 to 3"):
        plan_call(spec, Trainer.one, GROUP, (), {}, ranks=ranks)


def test_a_call_may_have_its_own_rule_for_uneven_rows() -> None:
    spec = spec_of(Trainer.rows)
    assert spec is not None
    plan_ = plan_call(spec, Trainer.rows, GROUP, (table(5),), {}, uneven="pad")
    assert [plan_.padding(rank) for rank in range(4)] == [0, 1, 1, 1]
    with pytest.raises(DivideError, match="got 5 rows, expected a multiple of the 4 places"):
        plan_call(spec, Trainer.rows, GROUP, (table(5),), {}, uneven="error")
    assert plan_call(spec, Trainer.rows, GROUP, (table(2),), {}, uneven="skip").ranks == (0, 1)


def test_a_wrong_call_fails_before_anything_is_planned() -> None:
    class Lazy(Table):
        def __len__(self) -> int:
            raise AssertionError("a wrong call must not look at its arguments")

    def method(self: object, batch: Any) -> Any: ...

    marked = register(Dispatch.DP_COMPUTE_PROTO)(method)
    with pytest.raises(ArgumentError, match=r"^Trainer\.method\(\): got an unexpected keyword argument 'bacth'"):
        plan(marked, GROUP, Lazy({}), bacth=1)


def test_the_group_may_be_anything_with_a_world_size() -> None:
    class group:  # noqa: N801  a class, not an instance
        world_size = 2

    assert plan(Trainer.rows, group, table(2)).ranks == (0, 1)


def test_errors_are_fanfold_s_own() -> None:
    for error in (ArgumentError, DivideError, MeshError, DirectCallError):
        assert issubclass(error, FanfoldError)
