from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Self

import pytest
from fanfold.dispatch import PerRank
from fanfold.worker import ClassWithInitArgs, GroupUsageError, RankInfo, RecipeError, Worker, WorkerGroup
from fanfold.worker.rank import enter_context, leave_context
from fanfold.worker.recipe import as_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping


class Engine:
    def __init__(self, size: int, *, learning_rate: float = 1.0, shard: Any = None) -> None:
        self.size = size
        self.learning_rate = learning_rate
        self.shard = shard


class Counting:
    def __new__(cls, start: int) -> Self:
        made = super().__new__(cls)
        made.__dict__["new"] = start
        return made

    def __init__(self, start: int) -> None:
        self.start = start


def _build_as(rank: int, recipe: ClassWithInitArgs) -> Any:
    before = enter_context(RankInfo(rank, 2))
    try:
        return recipe()
    finally:
        leave_context(before)


def test_builds_the_class() -> None:
    engine = ClassWithInitArgs(Engine, 3, learning_rate=0.5)()
    assert (engine.size, engine.learning_rate, engine.shard) == (3, 0.5, None)


def test_each_rank_has_its_own_arguments() -> None:
    recipe = ClassWithInitArgs(Engine, PerRank([10, 20]), shard=PerRank(lambda rank: f"shard-{rank}"))
    for rank in (0, 1):
        for form in (recipe, recipe.for_rank(rank)):
            engine = _build_as(rank, form)
            assert (engine.size, engine.shard) == (10 * (rank + 1), f"shard-{rank}")


def test_a_rank_receives_only_its_own_items() -> None:
    recipe = ClassWithInitArgs(Engine, PerRank([b"x" * 1000, b"y" * 1000]))
    assert b"yyy" in pickle.dumps(recipe)
    assert b"yyy" not in pickle.dumps(recipe.for_rank(0))
    assert recipe.for_rank(0).args == (b"x" * 1000,)


def test_recipe_without_such_arguments_is_its_own() -> None:
    recipe = ClassWithInitArgs(Engine, 3)
    assert recipe.for_rank(1) is recipe


def test_number_of_items_is_checked() -> None:
    recipe = ClassWithInitArgs(Engine, 1, shard=PerRank(["a", "b", "c"]))
    recipe.check(3)
    with pytest.raises(GroupUsageError, match=r"Engine\(shard=PerRank\(...\)\) has 3 items; the group has 2 ranks"):
        recipe.check(2)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'size'"),
        ((1, 2), {}, "too many positional arguments"),
        ((1,), {"learning_rte": 0.1}, "did you mean 'learning_rate'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        ClassWithInitArgs(Engine, *args, **kwargs)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("wrong", ["Engine", Engine(1), lambda: Engine(1)])
def test_what_is_no_class(wrong: Any) -> None:
    with pytest.raises(RecipeError, match="a worker is made from a class"):
        ClassWithInitArgs(wrong)


def test_a_class_is_a_recipe() -> None:
    recipe = ClassWithInitArgs(Engine, 1)
    assert as_recipe(recipe) is recipe
    assert as_recipe(object).cls is object


def test_instance_is_prepared_before_its_constructor_runs() -> None:
    seen: list[dict[str, Any]] = []
    engine = ClassWithInitArgs(Engine, 7).build(lambda worker: seen.append(dict(vars(worker))))
    assert seen == [{}]
    assert engine.size == 7
    counting = ClassWithInitArgs(Counting, 5).build(lambda worker: seen.append(dict(vars(worker))))
    assert seen[1] == {"new": 5}
    assert vars(counting) == {"new": 5, "start": 5}


def test_caller_keeps_its_keyword_dictionary() -> None:
    options = {"learning_rate": 0.1}
    recipe = ClassWithInitArgs(Engine, 1, **options)
    recipe.kwargs["learning_rate"] = 9.0
    assert options == {"learning_rate": 0.1}


class Choosy(Worker):
    def __init__(self, *, width: int, name: str = "") -> None:
        super().__init__()
        self.width, self.name = width, name

    @classmethod
    def check_before_start(cls, world_size: int, arguments: Mapping[str, Any]) -> None:
        super().check_before_start(world_size, arguments)
        if arguments["width"] % world_size:
            raise ValueError(f"width={arguments['width']} on {world_size} ranks, of {sorted(arguments)}")


def test_a_class_refuses_its_arguments_before_any_rank_starts() -> None:
    recipe = ClassWithInitArgs(Choosy, width=9, name=PerRank(["a", "b"]))
    with pytest.raises(ValueError, match=r"width=9 on 2 ranks, of \['width'\]"):
        WorkerGroup([2], recipe)
    with WorkerGroup([1], ClassWithInitArgs(Choosy, width=9)) as group:
        assert group.world_size == 1
