from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest
from fanfold.dispatch import PerRank, RegistrationError, Replicate, Rows, Shard
from fanfold.dispatch import annotations as module
from fanfold.dispatch.annotations import marks_of

if TYPE_CHECKING:
    from decimal import Decimal  # a name that exists for type checkers alone

    from fanfold.dispatch import Shard as SeenByCheckers

Batch = Annotated[Rows[int], Shard("ep")]


class Trainer:
    def marked(  # noqa: PLR0913  one parameter of each kind
        self,
        a: Annotated[Rows[int], Shard("ep")],
        b: Annotated[float, Replicate],
        /,
        *c: Annotated[list[int], PerRank],
        d: Annotated[Rows[int], Shard] | None = None,
        e: Optional[Annotated[Rows[int], Shard]] = None,  # noqa: UP045  the older spelling
        f: Annotated[Decimal, "no mark"] | None = None,
        g: Annotated[Decimal, Shard("dp", weights=lambda batch: module)] | None = None,
        h: Decimal | None = None,
        i: Batch | None = None,
        j: Decimal.unknown[int] | None = None,  # type: ignore[name-defined]
        **k: Annotated[list[str], PerRank],
    ) -> None: ...

    def late(self, x: Annotated[Rows[int], SeenByCheckers]) -> None: ...


def test_marks_are_read_from_annotations_even_as_text() -> None:
    marks = marks_of(Trainer.marked)
    assert {name: (type(mark).__name__, getattr(mark, "axis", None)) for name, mark in marks.items()} == {
        "a": ("Shard", "ep"),
        "b": ("Replicate", None),
        "c": ("PerRank", None),
        "d": ("Shard", None),
        "e": ("Shard", None),
        "g": ("Shard", "dp"),
        "i": ("Shard", "ep"),
        "k": ("PerRank", None),
    }
    weights = getattr(marks["g"], "weights")  # noqa: B009  typed as a bare mark
    assert weights(None) is module  # the function sees the names of its module


def test_marks_without_text_annotations() -> None:
    def f(self: Any, x: Any) -> None: ...

    f.__annotations__ = {"x": Annotated[int, "about", Replicate]}
    assert isinstance(marks_of(f)["x"], Replicate)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement came with Python 3.12")
def test_a_type_statement_may_hold_a_mark() -> None:
    names: dict[str, Any] = {"Annotated": Annotated, "Rows": Rows, "Shard": Shard}
    exec("type Batch = Annotated[Rows, Shard('ep')]\ndef f(self, x: Batch, y: Batch | None): ...", names)
    assert [getattr(mark, "axis", None) for mark in marks_of(names["f"]).values()] == ["ep", "ep"]


def test_marks_that_only_checkers_see_are_known_by_name() -> None:
    def f(self: Any, x: Any, y: Any) -> None: ...

    f.__annotations__ = {"x": "typing.Annotated[int, dispatch.Shard('ep')]", "y": "Optional[dispatch.Other]"}
    assert [getattr(mark, "axis", None) for mark in marks_of(f).values()] == ["ep"]


def test_a_mark_of_another_name_that_only_checkers_see_is_refused() -> None:
    with pytest.raises(RegistrationError, match=r"late: parameter 'x' is annotated with SeenByCheckers, which only"):
        marks_of(Trainer.late)


def test_two_marks_and_marks_with_values_are_refused() -> None:
    def twice(self: Any, x: Any) -> None: ...

    twice.__annotations__ = {"x": Annotated[int, Shard, Replicate]}
    with pytest.raises(RegistrationError, match="parameter 'x' has 2 marks, expected one of Shard, Replicate and"):
        marks_of(twice)

    def valued(self: Any, x: Any) -> None: ...

    valued.__annotations__ = {"x": Annotated[int, Shard(Rows([1]))]}
    with pytest.raises(RegistrationError, match="a value belongs to a call, a parameter has the bare mark"):
        marks_of(valued)


def test_annotations_that_cannot_be_evaluated_matter_only_if_they_may_hold_a_mark() -> None:
    def wrong(self: Any, x: Any) -> None: ...

    wrong.__annotations__ = {"x": "Annotated[int, Shard(weight=3)]"}
    with pytest.raises(
        RegistrationError, match=r"parameter 'x': its annotation Annotated\[int, Shard\(weight=3\)\] can"
    ):
        marks_of(wrong)

    def strange(self: Any, x: Any, y: Any) -> None: ...

    strange.__annotations__ = {"x": "1 / 0", "y": "not python"}
    assert marks_of(strange) == {}
