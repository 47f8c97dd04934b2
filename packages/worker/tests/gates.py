"""Workers of threads in this process that wait for the test."""

from __future__ import annotations

import threading
from typing import Any

from fanfold.dispatch import Dispatch, register
from fanfold.worker import Worker

GATES: dict[str, threading.Event] = {}
LIMIT = 30.0


def gate(name: str) -> threading.Event:
    return GATES.setdefault(name, threading.Event())


class Gated(Worker):
    def __init__(self, tag: str = "") -> None:
        super().__init__()
        self.tag = tag

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def quick(self, value: Any = None) -> Any:
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wait(self, name: str, ranks: tuple[int, ...] = ()) -> str:
        if not ranks or self.rank in ranks:
            while not gate(name).wait(0.005):
                if self.cancelled():
                    return "cancelled"
        return name

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, ranks: tuple[int, ...]) -> int:
        if self.rank in ranks:
            raise KeyError(self.rank)
        return self.rank
