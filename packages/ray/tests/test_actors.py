from __future__ import annotations

import asyncio
import inspect
import pickle
import pickletools
from typing import Any

import pytest
import sample_workers
from fanfold.dispatch import CallContext, current_call
from fanfold.ray import actors
from fanfold.ray.actors import AsyncRankProcess, RankProcess, SyncRankProcess, rank_class
from fanfold.ray.errors import GroupStartingError
from fanfold.ray.orders import Order
from ray import cloudpickle


class Odd:
    def defaults(self, value: Odd | None = None, *rest: int, flag: bool = True, **more: str) -> tuple[Any, ...]:
        return value, rest, flag, more

    def only_args(*args: int) -> tuple[int, ...]:
        return args[1:]

    @staticmethod
    def free(number: int) -> int:
        return number


def built(cls: type, *args: Any) -> Any:
    process = rank_class(cls)()
    process._fanfold_instance = cls(*args)
    return process


def test_the_generated_class_mentions_nothing_of_the_users_module() -> None:
    stream = cloudpickle.dumps(rank_class(sample_workers.Plain))
    names = {str(argument) for _, argument, _ in pickletools.genops(stream) if argument is not None}
    assert not any("sample_workers" in name for name in names)


def test_async_is_decided_by_any_async_method() -> None:
    assert issubclass(rank_class(sample_workers.Asynchronous), AsyncRankProcess)
    assert issubclass(rank_class(sample_workers.Plain), SyncRankProcess)
    assert inspect.iscoroutinefunction(rank_class(sample_workers.Asynchronous).same_thread)  # type: ignore[attr-defined]


def test_signatures_are_kept_bare() -> None:
    cls: Any = rank_class(Odd)
    assert str(inspect.signature(cls.defaults)) == "(self, value=None, *rest, flag=None, **more)"
    assert str(inspect.signature(cls.only_args)) == "(_fanfold_process, /, *args)"
    assert str(inspect.signature(cls.free)) == "(_fanfold_process, /, number)"
    assert cls.__name__ == "Odd"


def test_methods_run_on_the_users_object_with_its_own_defaults() -> None:
    process = built(Odd)
    assert process.defaults() == (None, (), True, {})
    assert process.only_args(1, 2) == (1, 2)
    assert process.free(3) == 3


def test_attributes_are_the_users() -> None:
    process = built(Odd)
    process.color = "red"
    assert process._fanfold_instance.color == "red"
    assert process.color == "red"
    del process.color
    with pytest.raises(AttributeError, match="color"):
        process.color  # noqa: B018


def test_nothing_runs_before_the_worker_is_built() -> None:
    process: Any = rank_class(Odd)()
    process._fanfold_instance = None
    assert isinstance(process, RankProcess)
    with pytest.raises(GroupStartingError, match="Odd has not built its worker; it cannot run free"):
        process.free(1)


class Told:
    def ask(self, *, suffix: str) -> str:
        return current_call().method + suffix

    def letters(self) -> Any:
        yield from "ab"


class ToldLater(Told):
    async def ask_later(self) -> int:
        return current_call().rank

    async def letters_later(self) -> Any:
        yield "c"


def arrived(result: Any) -> Any:
    return pickle.loads(pickle.dumps(result))


def order(method: Any, *names: str, wanted: bool = True) -> Order:
    return Order(CallContext(method="ask", rank=3, world_size=4), method, names, wanted, readonly=False)


@pytest.fixture(autouse=True)
def no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "_task_id", lambda: "task")


def test_a_groups_call_knows_itself() -> None:
    process = built(Told)
    assert process.fanfold_call(order("ask", "suffix"), "!") == "ask!"
    assert process.fanfold_call(order("ask", "suffix", wanted=False), "!") is None
    assert arrived(process.fanfold_call(order("letters"))) == ["a", "b"]
    assert arrived(process.fanfold_call(order(lambda worker, x: (type(worker), x)), 1)) == (Told, 1)


def test_an_async_call_knows_itself() -> None:
    process = built(ToldLater)
    results = [asyncio.run(process.fanfold_call(order(name))) for name in ("ask_later", "letters_later", "letters")]
    assert [arrived(result) for result in results] == [3, ["c"], ["a", "b"]]
