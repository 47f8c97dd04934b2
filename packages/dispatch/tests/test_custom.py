from __future__ import annotations

from typing import Any

import pytest
from dispatch_fakes import Group, plan, run
from fanfold.dispatch import ArgumentError, DivideError, Execute, GroupSlice, Mesh, plan_call, register, spec_of
from fanfold.dispatch.functions import collect_dp_compute, dispatch_one_to_all

GROUP = Group(4, Mesh.from_sizes("train", {"tp": 2, "dp": 2}))


def by_rank(group: Any, *args: Any, **kwargs: Any) -> Any:
    """Scale every argument by the rank."""
    ranks = range(group.world_size)
    return tuple([arg * rank for rank in ranks] for arg in args), {
        k: [v * rank for rank in ranks] for k, v in kwargs.items()
    }


def by_place(group: Any, *args: Any) -> Any:
    place = group.mesh("train").place()
    return tuple([arg[place[rank]] for rank in range(group.world_size)] for arg in args), {}


def collect_with_group(group: Any, outputs: list[Any]) -> Any:
    return group.world_size, outputs


class Trainer:
    @register({"dispatch_fn": by_rank, "collect_fn": collect_with_group})
    def scaled(self, x: int, *, y: int = 0) -> int: ...  # type: ignore[empty-body]

    @register({"dispatch_fn": by_rank, "collect_fn": collect_with_group}, Execute.RANK_ZERO)
    def scaled_on_zero(self, x: int) -> int: ...  # type: ignore[empty-body]

    @register({"dispatch_fn": by_place, "collect_fn": collect_dp_compute})
    def placed(self, x: Any) -> Any: ...

    @register({"dispatch_fn": dispatch_one_to_all, "collect_fn": collect_with_group})
    def same(self, x: int) -> int: ...  # type: ignore[empty-body]


def test_a_custom_mode_spreads_and_collects() -> None:
    plan_ = plan(Trainer.scaled, GROUP, 3, y=1)
    assert [plan_.arguments(rank) for rank in range(4)] == [
        ((0,), {"y": 0}),
        ((3,), {"y": 1}),
        ((6,), {"y": 2}),
        ((9,), {"y": 3}),
    ]
    assert run(plan_, lambda rank, x, y: x + y) == (4, [0, 4, 8, 12])


def test_a_custom_function_reads_the_mesh_and_shared_entries_are_placed_once() -> None:
    plan_ = plan(Trainer.placed, GROUP, [["left"], ["right"]])
    assert [plan_.arguments(rank)[0][0] for rank in range(4)] == [["left"], ["left"], ["right"], ["right"]]
    assert len(plan_.pieces()) == 2
    assert run(plan_, lambda rank, x: rank) == [0, 1, 2, 3]


def test_built_in_dispatch_with_a_custom_collect() -> None:
    assert run(plan(Trainer.same, GROUP, 7), lambda rank, x: x + rank) == (4, [7, 8, 9, 10])


def test_alone_rank_zero_takes_its_own_entry() -> None:
    plan_ = plan(Trainer.scaled_on_zero, GROUP, 3)
    assert plan_.ranks == (0,)
    assert run(plan_, lambda rank, x: x) == (1, [0])


def test_alone_the_first_rank_of_a_slice_takes_its_own_entry() -> None:
    spec = spec_of(Trainer.scaled_on_zero)
    assert spec is not None
    plan_ = plan_call(spec, Trainer.scaled_on_zero, GROUP, (3,), {}, ranks=[2, 3])
    assert plan_.ranks == (2,)
    assert plan_.arguments(2)[0] == (6,)


def test_a_slice_is_a_group_of_its_own() -> None:
    spec = spec_of(Trainer.placed)
    assert spec is not None
    plan_ = plan_call(spec, Trainer.placed, GROUP, ([["left"], ["right"]],), {}, ranks=[1, 3])
    assert [plan_.arguments(rank)[0][0] for rank in (1, 3)] == [["left"], ["right"]]
    slice_ = GroupSlice(GROUP, [2, 3])
    assert slice_.world_size == 2
    assert slice_.mesh("train").place("tp") == {0: 0, 1: 1}


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ([[1] * 4], ArgumentError, r"dispatch function <lambda> returned list, expected a pair \(args, kwargs\)"),
        (None, ArgumentError, "returned NoneType, expected a pair"),
        ((([1] * 3,), {}), DivideError, "gave a list of 3 for argument 0, expected a list of 4, one per rank"),
        (((), {"x": 5}), DivideError, "gave int for argument x, expected a list of 4, one per rank"),
    ],
)
def test_wrong_answers_of_a_dispatch_function_are_named(answer: Any, error: type[Exception], message: str) -> None:
    @register({"dispatch_fn": lambda group, *args: answer, "collect_fn": collect_with_group})
    def method(self: object, x: int) -> None: ...

    with pytest.raises(error, match=rf"^Trainer\.method\(\): .*{message}"):
        plan(method, GROUP, 1)


def test_the_function_s_own_error_comes_through() -> None:
    def broken(group: Any, *args: Any) -> Any:
        raise LookupError("no such shard")

    @register({"dispatch_fn": broken, "collect_fn": collect_with_group})
    def method(self: object, x: int) -> None: ...

    with pytest.raises(LookupError, match="no such shard"):
        plan(method, GROUP, 1)
