"""The backend that is this process: ranks run one after the other, breakpoints and prints work.

What is real: the rank environment, the border (arguments and results are pickled), names, errors, order of results.
What is not: ranks do not run at the same time, so a method whose ranks wait for each other cannot end here.
"""

from __future__ import annotations

import importlib
import inspect
import os
import socket
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.dispatch import serving
from fanfold.worker.backend import Failure, Outcome, Request, StartedRank, StartOrder, Success
from fanfold.worker.border import across, pack, unpack
from fanfold.worker.errors import WorkerLostError, WorkerStartError
from fanfold.worker.limits import Deadline
from fanfold.worker.rank import RankInfo, as_rank, rank_infos


@dataclass
class InlineRank:
    """A worker of this process, and who it is while one of its methods runs."""

    info: RankInfo
    environment: Mapping[str, str]
    worker: Any = None


@dataclass(frozen=True)
class InlineHandle:
    """A finished call."""

    outcome: Outcome


class InlineBackend:
    """Ranks in this process, one after the other."""

    name = "inline"

    def start(self, order: StartOrder, deadline: Deadline) -> Sequence[StartedRank]:
        """Build the workers in rank order, each in its own rank environment."""
        infos = rank_infos(order.slots, order.group, self.name, ("127.0.0.1", _free_port()))
        return [self._start_one(order, info, deadline) for info in infos]

    def _start_one(self, order: StartOrder, info: RankInfo, deadline: Deadline) -> StartedRank:
        deadline.check(missing=order.names[info.rank])
        door = InlineRank(info, order.environment)
        recipe = pack(order.recipe, f"the recipe of {order.recipe.cls.__qualname__}")
        outcome = _run(door, lambda: unpack(recipe)())
        if isinstance(outcome, Failure):
            raise WorkerStartError(
                f"rank {info.rank} ({order.names[info.rank]}) could not build its "
                f"{order.recipe.cls.__qualname__}: {type(outcome.error).__name__}: {outcome.error}\n{outcome.trace}"
            ) from outcome.error
        door.worker = outcome.value
        return StartedRank(info.rank, order.names[info.rank], socket.gethostname(), os.getpid(), door)

    def place(self, value: Any) -> Any:
        """Pack a value once; each rank that reads it unpacks a copy of its own."""
        return pack(value, "an argument")

    def call(self, rank: StartedRank, request: Request) -> InlineHandle:
        """Run the call now."""
        return InlineHandle(_run(rank.door, lambda: _invoke(rank.door, request)))

    def wait(self, handles: Sequence[InlineHandle], limit: float) -> set[int]:  # noqa: ARG002  # nothing to wait for
        """Return all positions: a call has finished when it has been made."""
        return set(range(len(handles)))

    def fetch(self, handle: InlineHandle) -> Outcome:
        """Return what the call came to."""
        return handle.outcome

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:  # noqa: ARG002  # nothing to wait for
        """Let go of the workers, rank 0 last."""
        for rank in sorted(ranks, key=lambda started: started.rank, reverse=True):
            rank.door.worker = None


def _run(door: InlineRank, action: Any) -> Outcome:
    try:
        with as_rank(door.info, door.environment):
            return Success(action())
    except Exception as error:  # whatever a user's method raises is the outcome of the call
        return Failure(error, traceback.format_exc())


def _invoke(door: InlineRank, request: Request) -> Any:
    if door.worker is None:
        raise WorkerLostError(f"rank {door.info.rank} of group {door.info.group!r} was closed")
    function = getattr(door.worker, request.method) if isinstance(request.method, str) else _with(door, request.method)
    args = [unpack(value) for value in request.args]
    kwargs = {name: unpack(value) for name, value in request.kwargs.items()}
    with serving(request.context):
        result = _finished(function(*args, **kwargs))
    return across(result, f"the result of {request.label}") if request.wanted else None


def _with(door: InlineRank, function: Any) -> Any:
    shipped = across(function, "a function")
    return lambda *args, **kwargs: shipped(door.worker, *args, **kwargs)


def _finished(result: Any) -> Any:
    if not inspect.isawaitable(result):
        return result
    asyncio = importlib.import_module("asyncio")  # at first use: it costs a fifth of this package's import budget

    async def finish() -> Any:
        return await result

    return asyncio.run(finish())


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
