from __future__ import annotations

from typing import Annotated, Any

import pytest
from fanfold.dispatch import ArgumentError, PerRank, Replicate, Rows, Shard
from fanfold.dispatch.signature import argument, bind_call, parameters_of


class Trainer:
    def train(
        self, batch: Annotated[Rows[int], Shard], lr: float = 0.1, *rest: int, flag: bool = False, **more: str
    ) -> None: ...

    def every(self, *parts: Annotated[list[int], PerRank], **named: Annotated[Rows[int], Shard]) -> None: ...

    def boundless(*args: Any) -> None: ...


def test_the_worker_itself_is_no_parameter() -> None:
    signature = parameters_of(Trainer.train).signature
    assert list(signature.parameters) == ["batch", "lr", "rest", "flag", "more"]
    assert list(parameters_of(Trainer.boundless).signature.parameters) == ["args"]


def test_arguments_keep_the_way_they_were_passed() -> None:
    rows = Rows([1])
    call = bind_call("T.train()", Trainer.train, (rows, 0.5, 7, 8), {"flag": True, "note": "x"})
    assert [(a.name, a.value) for a in call.positional] == [
        ("batch", rows),
        ("lr", 0.5),
        ("rest[0]", 7),
        ("rest[1]", 8),
    ]
    assert {name: a.value for name, a in call.keyword.items()} == {"flag": True, "note": "x"}
    by_name = bind_call("T.train()", Trainer.train, (), {"batch": rows})
    assert by_name.positional == ()
    assert isinstance(by_name.keyword["batch"].mark, Shard)


def test_a_name_that_stands_twice_in_a_call_is_two_arguments() -> None:
    def step(self: object, a: int, /, **rest: int) -> None: ...

    call = bind_call("step()", step, (1,), {"a": 2})
    assert [(x.name, x.value) for x in call.arguments()] == [("a", 1), ("rest['a']", 2)]


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {}, "missing a required argument: 'batch'"),
        ((1,), {"batch": 2}, "multiple values for argument 'batch'"),
    ],
)
def test_a_wrong_call_is_refused_with_the_signature(args: Any, kwargs: Any, problem: str) -> None:
    message = rf"T\.train\(\): {problem}; got .*, expected \(batch.*\. Nothing was sent"
    with pytest.raises(ArgumentError, match=message) as caught:
        bind_call("T.train()", Trainer.train, args, kwargs)
    assert isinstance(caught.value, TypeError)


def test_too_many_arguments_are_refused() -> None:
    def step(self: object, x: int) -> None: ...

    with pytest.raises(
        ArgumentError, match=r"step\(\): too many positional arguments; got 2 by position, expected \(x: 'int'\)"
    ):
        bind_call("step()", step, (1, 2), {})
    with pytest.raises(ArgumentError, match="got an unexpected keyword argument 'y'"):
        bind_call("step()", step, (1,), {"y": 2})


def test_the_marks_of_rest_arguments_apply_to_each() -> None:
    call = bind_call("T.every()", Trainer.every, ([1], [2]), {"a": Rows(), "b": Rows()})
    assert [(a.name, type(a.mark).__name__) for a in call.arguments()] == [
        ("parts[0]", "PerRank"),
        ("parts[1]", "PerRank"),
        ("a", "Shard"),
        ("b", "Shard"),
    ]


def test_a_mark_at_the_call_wins() -> None:
    call = bind_call("T.train()", Trainer.train, (Replicate(Rows([1])),), {})
    assert call.positional[0].value == Rows([1])
    assert isinstance(call.positional[0].mark, Replicate)


@pytest.mark.parametrize("mark", [Shard, Shard("ep"), Replicate()])
def test_a_mark_without_a_value_is_no_argument(mark: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"argument 'x' is a mark without a value; write (Shard|Replicate)\(value\)"
    ):
        argument("x", mark)
