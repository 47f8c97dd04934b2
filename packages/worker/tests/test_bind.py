from __future__ import annotations

import inspect
from typing import Any

import pytest
from fanfold.dispatch import ArgumentError, Dispatch, Rows, register
from fanfold.worker import BoundMethod, MethodNameClashError, UnknownMethodError, Worker, WorkerGroup
from fanfold.worker.options import DEFAULTS


class Trainer(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def train(self, batch: Rows[int], lr: float = 0.1, *, steps: int = 1) -> Rows[float]:
        """Train a step."""
        return Rows(row * lr * steps for row in batch)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def rank_of(self) -> int:
        return self.rank

    def unmarked(self) -> int:
        return 1


class Better(Trainer):
    def rank_of(self) -> int:
        return 10 + self.rank


@pytest.fixture(name="group", scope="module")
def _group() -> Any:
    with WorkerGroup([2], Trainer) as group:
        yield group


def test_signature_docstring_and_name_are_the_methods(group: WorkerGroup[Trainer]) -> None:
    train = group.train
    assert isinstance(train, BoundMethod)
    assert (
        str(inspect.signature(train)) == "(batch: 'Rows[int]', lr: 'float' = 0.1, *, steps: 'int' = 1) -> 'Rows[float]'"
    )
    assert train.__doc__ == "Train a step."
    assert (train.__name__, train.__qualname__) == ("train", "Trainer.train")
    assert repr(train).startswith("<Trainer.train(batch")
    assert train.spec.dispatch_mode is Dispatch.DP_COMPUTE_PROTO


def test_group_lists_its_methods(group: WorkerGroup[Trainer]) -> None:
    assert {"train", "rank_of", "close", "execute_all"} <= set(dir(group))
    assert "unmarked" not in dir(group)


def test_explain_sends_nothing(group: WorkerGroup[Trainer]) -> None:
    table = group.train.explain(Rows(range(3)), lr=0.5)
    assert "rows 0..2" in table
    assert "rows 2..3" in table
    with pytest.raises(ArgumentError):
        group.train.explain()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tarin", "Trainer has no such method; did you mean 'train'"),
        ("unmarked", "Trainer is not marked with @register"),
        ("zzz", r"has no such method; it registers execute_func_rank_zero, .*rank_of, train"),
    ],
)
def test_unknown_method(group: WorkerGroup[Trainer], name: str, message: str) -> None:
    with pytest.raises(UnknownMethodError, match=message) as caught:
        getattr(group, name)
    assert isinstance(caught.value, AttributeError)
    assert not hasattr(group, name)


def test_unmarked_method_by_name(group: WorkerGroup[Trainer]) -> None:
    assert group.execute_all("unmarked") == [1, 1]
    with pytest.raises(UnknownMethodError, match="did you mean 'train'"):
        group.execute_all("trian")
    with pytest.raises(UnknownMethodError):
        group.execute_rank_zero("name_prefix")


def test_overriding_method_keeps_the_mark() -> None:
    with WorkerGroup([2], Better) as group:
        assert group.rank_of() == [10, 11]


@pytest.mark.parametrize("name", ["execute_all", "close", "world_size", "_ranks", "resource_pool", "fuse", "slice"])
def test_method_that_would_hide_the_group_is_refused_with_both_places(name: str) -> None:
    def method(self: Any) -> None: ...

    method.__name__ = name
    cls = type("Hiding", (Worker,), {name: register(dispatch_mode=Dispatch.ONE_TO_ALL)(method)})
    with pytest.raises(MethodNameClashError, match=rf"Hiding\.{name} is registered, but WorkerGroup\.{name}"):
        WorkerGroup([1], cls)


def test_options_do_not_touch_the_registration(group: WorkerGroup[Trainer]) -> None:
    train = group.train
    other = train.options(blocking=False, timeout=7, ranks=[1]).options(uneven="error")
    assert other(Rows([1]), 1.0).result() == Rows([1.0])
    assert other(Rows([1]), 1.0).deadline.seconds == 7
    assert train(Rows([1, 2]), 1.0) == Rows([1.0, 2.0])
    assert train._options == DEFAULTS


def test_options_reach_the_plan(group: WorkerGroup[Trainer]) -> None:
    with pytest.raises(ValueError, match="3 rows"):
        group.train.options(uneven="error")(Rows(range(3)))
