"""Ranks in processes of this machine, kept between tests because importing Megatron-Core takes 5 s a process.

`test_processes.py` uses the processes backend of `fanfold.worker`, as users do.
"""

from __future__ import annotations

import socket
import time
import traceback
import warnings
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import TYPE_CHECKING, Any

from fanfold.worker import (
    Deadline,
    Failure,
    Outcome,
    RankInfo,
    Request,
    StartedRank,
    StartOrder,
    Success,
    WaitTimeoutError,
    rank_infos,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(eq=False)
class Reply:
    """The place of an outcome among those that a process sends, one after the other."""

    process: RankProcess
    outcome: Outcome | None = None


@dataclass(eq=False)
class RankProcess:
    """One process, and the replies that are still to come from it, in order."""

    pipe: Any
    process: Any
    awaited: list[Reply] = field(default_factory=list)

    def ask(self, message: object) -> Reply:
        reply = Reply(self)
        try:
            self.pipe.send(message)
        except OSError:
            reply.outcome = self._lost()
        else:
            self.awaited.append(reply)
        return reply

    def _lost(self) -> Failure:
        return Failure(RuntimeError(f"process {self.process.pid} ended"), lost=True)

    def receive(self) -> None:
        reply = self.awaited.pop(0)
        try:
            reply.outcome = self.pipe.recv()
        except (EOFError, OSError):
            reply.outcome = self._lost()


class RankPool:
    """A backend whose processes outlive the groups that are made on them."""

    name = "pool"

    def __init__(self, size: int) -> None:
        context = get_context("spawn")
        self._processes = []
        for _ in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,))
            process.start()
            there.close()
            self._processes.append(RankProcess(here, process))

    @property
    def pids(self) -> list[int]:
        return [int(process.process.pid) for process in self._processes]

    def start(self, order: StartOrder, deadline: Deadline) -> Sequence[StartedRank]:
        infos = rank_infos(order.slots, order.group, self.name, ("127.0.0.1", free_port()))
        replies = [
            process.ask(("start", info, dict(order.environment), order.recipe))
            for process, info in zip(self._processes, infos, strict=False)
        ]
        for reply in replies:
            while reply.outcome is None:
                if not self.wait([reply], deadline.left()):
                    raise WaitTimeoutError("the start of a rank", deadline.seconds)
        for reply in replies:
            if isinstance(reply.outcome, Failure):
                raise reply.outcome.error
        return [
            StartedRank(info.rank, name, "here", process.process.pid, process)
            for process, info, name in zip(self._processes, infos, order.names, strict=False)
        ]

    def place(self, value: Any) -> Any:
        return value

    def call(self, rank: StartedRank, request: Request) -> Reply:
        reply: Reply = rank.door.ask(("call", request))
        return reply

    def wait(self, handles: Sequence[Reply], limit: float) -> set[int]:
        end = time.monotonic() + limit
        while not (done := {position for position, reply in enumerate(handles) if reply.outcome is not None}):
            open_pipes = {reply.process.pipe: reply.process for reply in handles}
            ready = connection.wait(list(open_pipes), max(0.0, end - time.monotonic()))
            if not ready:
                return set()
            for pipe in ready:
                open_pipes[pipe].receive()
        return done

    def fetch(self, handle: Reply) -> Outcome:
        assert handle.outcome is not None
        return handle.outcome

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:
        replies = [rank.door.ask(("stop",)) for rank in ranks]
        for reply in replies:
            while reply.outcome is None and self.wait([reply], limit):
                pass

    def close(self) -> None:
        for process in self._processes:
            process.pipe.close()
        for process in self._processes:
            process.process.join(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(pipe: Any) -> None:
    warnings.simplefilter("ignore")
    import torch  # noqa: PLC0415  # in the child alone

    torch.set_num_threads(1)
    worker: Any = None
    while True:
        try:
            message = pipe.recv()
            worker, value = _do(worker, message)
            outcome: Outcome = Success(value)
        except EOFError:
            return
        except Exception as error:  # noqa: BLE001  # whatever a method raises is its outcome
            outcome = Failure(error, traceback.format_exc())
        pipe.send(outcome)
        message = value = outcome = None  # type: ignore[assignment]  # an error holds the worker that raised it


def _do(worker: Any, message: Any) -> tuple[Any, Any]:
    from fanfold.worker.rank import enter_rank  # noqa: PLC0415  # in the child alone

    if message[0] == "start":
        _, info, environment, recipe = message
        assert isinstance(info, RankInfo)
        enter_rank(info, environment)
        return recipe(), None
    if message[0] == "stop":
        if worker is not None:
            worker.close()
        return None, None
    request: Request = message[1]
    if isinstance(request.method, str):
        result = getattr(worker, request.method)
    else:
        result = lambda *args, **kwargs: request.method(worker, *args, **kwargs)  # noqa: E731
    with _context(request):
        return worker, result(*request.args, **request.kwargs)


def _context(request: Request) -> Any:
    from fanfold.dispatch import serving  # noqa: PLC0415  # in the child alone

    return serving(request.context)
