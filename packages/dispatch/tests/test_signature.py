from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest
from fanfold.dispatch import ArgumentError, PerRank, RegistrationError, Replicate, Rows, Shard
from fanfold.dispatch import signature as signatures
from fanfold.dispatch.signature import argument, bind_call, marks_of, signature_of

if TYPE_CHECKING:
    from decimal import Decimal  # a name that exists for type checkers alone

    from fanfold.dispatch import Shard as SeenByCheckers


class Trainer:
    def train(
        self, batch: Annotated[Rows[int], Shard], lr: float = 0.1, *rest: int, flag: bool = False, **more: str
    ) -> None: ...

    def marked(  # type: ignore[empty-body]  # noqa: PLR0913  one parameter of each kind
        self,
        a: Annotated[Rows[int], Shard("ep")],
        b: Annotated[float, Replicate],
        /,
        *c: Annotated[list[int], PerRank],
        d: Annotated[Rows[int], Shard] | None = None,
        e: Optional[Annotated[Rows[int], Shard]] = None,  # noqa: UP045  the older spelling
        f: Annotated[Decimal, "no mark"] | None = None,
        g: Annotated[Decimal, Shard("dp", weights=lambda batch: signatures)] | None = None,
        **h: Annotated[list[str], PerRank],
    ) -> Annotated[Rows[int], Shard]: ...

    def late(self, x: Annotated[Rows[int], SeenByCheckers]) -> None: ...


def test_the_worker_itself_is_no_parameter() -> None:
    assert str(signature_of(Trainer.train)).startswith("(batch: 'Annotated[Rows[int], Shard]', lr: 'float' = 0.1")


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
    with pytest.raises(
        ArgumentError, match=rf"T\.train\(\): {problem}; the signature is \(batch.*\. Nothing was sent"
    ) as caught:
        bind_call("T.train()", Trainer.train, args, kwargs)
    assert isinstance(caught.value, TypeError)


def test_too_many_arguments_are_refused() -> None:
    def step(self: object, x: int) -> None: ...

    with pytest.raises(ArgumentError, match=r"step\(\): too many positional arguments; the signature is \(x: 'int'\)"):
        bind_call("step()", step, (1, 2), {})
    with pytest.raises(ArgumentError, match="got an unexpected keyword argument 'y'"):
        bind_call("step()", step, (1,), {"y": 2})


def test_marks_are_read_from_annotations_even_as_text() -> None:
    marks = marks_of(Trainer.marked)
    assert {name: (type(mark).__name__, getattr(mark, "axis", None)) for name, mark in marks.items()} == {
        "a": ("Shard", "ep"),
        "b": ("Replicate", None),
        "c": ("PerRank", None),
        "d": ("Shard", None),
        "e": ("Shard", None),
        "g": ("Shard", "dp"),
        "h": ("PerRank", None),
    }
    weights = getattr(marks["g"], "weights")  # noqa: B009  typed as a bare mark
    assert weights(None) is signatures  # the function sees the names of its module


def test_a_mark_of_another_name_that_only_checkers_see_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"late: parameter 'x' is annotated with SeenByCheckers, which only"):
        marks_of(Trainer.late)


def test_marks_without_text_annotations() -> None:
    def f(self: Any, x: Any) -> None: ...

    f.__annotations__ = {"x": Annotated[int, "about", Replicate]}
    assert isinstance(marks_of(f)["x"], Replicate)


def test_the_marks_of_rest_arguments_apply_to_each() -> None:
    call = bind_call("T.marked()", Trainer.marked, (Rows(), 1.0, [1], [2]), {"h1": ["x"]})
    assert [type(a.mark).__name__ for a in call.arguments()] == ["Shard", "Replicate", "PerRank", "PerRank", "PerRank"]


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


def test_wrong_marks_are_refused() -> None:
    def twice(self: Any, x: Any) -> None: ...

    twice.__annotations__ = {"x": Annotated[int, Shard, Replicate]}
    with pytest.raises(
        RegistrationError, match="parameter 'x' has 2 marks, expected one of Shard, Replicate and PerRank"
    ):
        marks_of(twice)

    def valued(self: Any, x: Any) -> None: ...

    valued.__annotations__ = {"x": Annotated[int, Shard(Rows([1]))]}
    with pytest.raises(RegistrationError, match="a value belongs to a call, a parameter has the bare mark"):
        marks_of(valued)

    def wrong(self: Any, x: Any) -> None: ...

    wrong.__annotations__ = {"x": "Annotated[int, Shard(weight=3)]"}
    with pytest.raises(
        RegistrationError, match=r"parameter 'x': its annotation Annotated\[int, Shard\(weight=3\)\] cannot be"
    ):
        marks_of(wrong)
