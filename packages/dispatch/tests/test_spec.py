from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from fanfold.dispatch import (
    MAGIC_ATTR,
    Dispatch,
    MethodSpec,
    RegistrationError,
    Replicate,
    Shard,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    spec_of,
    specs_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Base:
    def unmarked(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def second(self) -> None: ...

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def first(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def _private(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def dropped(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def made_async(self) -> None: ...


class Child(Base):
    dropped = None  # type: ignore[assignment]

    def first(self) -> None: ...

    @register(Dispatch.RANK_ZERO)
    def second(self) -> None: ...

    async def made_async(self) -> None: ...  # type: ignore[override]

    @register()
    def third(self) -> None: ...


class Other:
    @register(Dispatch.ONE_TO_ALL)
    def mixed_in(self) -> None: ...


class Both(Child, Other):
    pass


def test_the_mark_is_on_the_function_itself() -> None:
    assert getattr(Base.second, MAGIC_ATTR) == MethodSpec(dispatch_mode=Dispatch.ONE_TO_ALL)
    assert spec_of(Base.second) is getattr(Base.second, MAGIC_ATTR)
    assert spec_of(Base().second) is spec_of(Base.second)
    assert spec_of(Base.unmarked) is None
    assert spec_of(3) is None


def test_fields_and_defaults() -> None:
    assert [(field.name, field.default) for field in fields(MethodSpec)] == [
        ("dispatch_mode", Dispatch.ALL_TO_ALL),
        ("execute_mode", MethodSpec().execute_mode),
        ("blocking", True),
        ("materialize_futures", True),
        ("uneven", "split"),
        ("balance", None),
        ("reads", None),
        ("inputs", "writable"),
        ("apart", ()),
        ("merge", None),
        ("timeout", None),
        ("kind", "sync"),
    ]


def test_a_spec_is_a_frozen_value_that_travels() -> None:
    spec = spec_of(Base.first)
    assert spec is not None
    with pytest.raises(FrozenInstanceError):
        spec.uneven = "split"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_spec_with_an_nd_mode_travels() -> None:
    @register(make_nd_compute_dataproto_dispatch_fn("train"))
    def method(self: object) -> None: ...

    spec = pickle.loads(pickle.dumps(spec_of(method)))
    assert spec.dispatch_mode.dispatch_fn.args == ("train",)


def test_marked_methods_in_the_order_of_their_definitions() -> None:
    assert list(specs_of(Base)) == ["second", "first", "_private", "dropped", "made_async"]


def test_overriding() -> None:
    specs = specs_of(Child)
    assert list(specs) == ["second", "first", "_private", "made_async", "third"]
    assert specs["first"] == specs_of(Base)["first"]  # no mark of its own: the base's
    assert specs["second"].dispatch_mode is Dispatch.RANK_ZERO
    assert (specs_of(Base)["made_async"].kind, specs["made_async"].kind) == ("sync", "async")
    assert list(specs_of(Both)) == ["mixed_in", *specs]


class Kinds:
    @register(Dispatch.ONE_TO_ALL)
    def sync(self) -> int:
        return 1

    @register(Dispatch.ONE_TO_ALL)
    async def coroutine(self) -> int:
        return 1

    @register(Dispatch.ONE_TO_ALL)
    def generator(self) -> Iterator[int]:
        yield 1

    @register(Dispatch.ONE_TO_ALL)
    async def async_generator(self) -> AsyncIterator[int]:
        yield 1


def test_kinds_of_methods() -> None:
    assert [spec.kind for spec in specs_of(Kinds).values()] == ["sync", "async", "generator", "async_generator"]


@pytest.mark.parametrize("decorator", [classmethod, staticmethod, property])
def test_decorators_around_a_mark_are_refused_by_class_and_name(decorator: Any) -> None:
    @register(Dispatch.ONE_TO_ALL)
    def method(self: object) -> None: ...

    cls = type("Trainer", (), {"step": decorator(method)})
    with pytest.raises(
        RegistrationError, match=rf"Trainer\.step: got a {decorator.__name__}, expected a method that takes self"
    ):
        specs_of(cls)


def test_other_decorators_are_no_concern_of_ours() -> None:
    cls = type(
        "Trainer", (), {"a": classmethod(lambda cls: 1), "b": property(lambda self: 1), "c": staticmethod(len), "d": 3}
    )
    assert specs_of(cls) == {}


def test_wrong_marks_on_parameters_are_found_when_the_class_is_looked_at() -> None:
    class Trainer:
        @register(Dispatch.ONE_TO_ALL)
        def step(self, batch: Annotated[int, Shard, Replicate]) -> None: ...

    with pytest.raises(RegistrationError, match=r"Trainer\.step: parameter 'batch' has 2 marks"):
        specs_of(Trainer)
