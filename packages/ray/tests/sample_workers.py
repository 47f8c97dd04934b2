"""Worker classes that ranks import by name; what the module reads at import is part of the tests."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import Dispatch, Execute, current_call, register
from fanfold.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

RANK_AT_IMPORT = os.environ.get("RANK")
COLOR_AT_IMPORT = os.environ.get("COLOR")


class StubbornError(Exception):
    """Cannot be unpickled: its constructor wants other arguments than it keeps."""

    def __init__(self, code: int, *, place: str) -> None:
        super().__init__(f"code {code} at {place}")
        self.code = code
        self.lock_holder = threading.current_thread().name


class Plain(Worker):
    """A worker without async methods."""

    limit = 3

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.value = start
        self.built_on = threading.get_ident()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def where(self) -> dict[str, Any]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "RAY_LOCAL_WORLD_SIZE",
                 "WG_PREFIX", "WG_BACKEND", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip
        return {name: os.environ[name] for name in names} | {"at import": (RANK_AT_IMPORT, COLOR_AT_IMPORT)}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def threads(self) -> tuple[bool, bool]:
        return threading.get_ident() == self.built_on, threading.current_thread() is threading.main_thread()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, amount: int, *, times: int = 1) -> int:
        self.value += amount * times
        return self.value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def lead(self) -> int:
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def call(self) -> tuple[str, int, int]:
        call = current_call()
        return call.method, call.rank, call.world_size

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_on(self, rank: int, kind: str, others_sleep: float = 0.0, others_wait_for: Path | None = None) -> int:
        if self.rank != rank:
            time.sleep(others_sleep)
            while others_wait_for and not others_wait_for.exists():
                time.sleep(0.02)
            return self.rank
        if kind == "key":
            raise KeyError("shard-2-missing")
        if kind == "stubborn":
            raise StubbornError(7, place="here")
        if kind == "exit":
            print("these are my last words", flush=True)  # noqa: T201
            os._exit(3)
        raise AssertionError(kind)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def unpicklable(self) -> Any:
        return threading.Lock()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def later(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def register_meshes(self) -> None:
        self.register_mesh_rank("halves", self.rank // 2, collect=self.rank % 2 == 0)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def identity(self, value: Any) -> Any:
        return value

    def count(self, stop: int) -> Iterator[int]:
        yield from range(stop)

    @staticmethod
    def double(number: int) -> int:
        return 2 * number

    @classmethod
    def class_limit(cls) -> int:
        return cls.limit

    def _hidden(self) -> str:
        return "found"


class Asynchronous(Worker):
    """A worker with an async method."""

    def __init__(self) -> None:
        super().__init__()
        self.built_on = threading.get_ident()
        self.running = self.most_running = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def overlap(self, seconds: float) -> int:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(seconds)
        self.running -= 1
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def most(self) -> int:
        return self.most_running

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def same_thread(self) -> bool:
        return threading.get_ident() == self.built_on

    async def stream(self, stop: int) -> AsyncIterator[int]:
        for number in range(stop):
            yield number


class Fragile(Worker):
    """A worker that one rank cannot build."""

    def __init__(self, bad_rank: int, how: str) -> None:
        super().__init__()
        if self.rank == bad_rank:
            self.break_down(how)

    def break_down(self, how: str) -> None:
        if how == "raise":
            raise KeyError("no such model")
        if how == "exit":
            os._exit(3)
        time.sleep(600)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ping(self) -> int:
        return self.rank


class Slow(Worker):
    """A worker that says in a file that it has begun, and takes its time."""

    def __init__(self, folder: str, seconds: float) -> None:
        super().__init__()
        begun = Path(folder) / f"{self.rank}.new"
        begun.write_text(str(os.getpid()))
        begun.rename(Path(folder) / str(self.rank))
        time.sleep(seconds)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ping(self) -> int:
        return self.rank


class Rejoining(Worker):
    """A worker that hears of ranks that are new, and can be bound to the others."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[int, int]] = []

    def on_rejoin(self, ranks: dict[int, int]) -> None:
        self.heard.append(dict(ranks))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def pid(self) -> int:
        return os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def news(self) -> list[dict[int, int]]:
        return self.heard

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def bind_together(self) -> bool:
        import torch.distributed as dist  # noqa: PLC0415  # only this test has torch

        dist.init_process_group("gloo", rank=self.rank, world_size=self.world_size)
        return bool(dist.is_initialized())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fall(self, rank: int) -> int:
        if self.rank == rank:
            os.kill(os.getpid(), 9)
        return self.rank
