"""The backend that is this process: ranks run one after the other, breakpoints and prints work.

What is real: the rank environment, the border (arguments and results are pickled), names, errors, order of results.
What is not: ranks do not run at the same time, so a method whose ranks wait for each other cannot end here; the threads
backend and the processes backend are for those.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import serving
from fanfold.worker.address_book import address_of, found
from fanfold.worker.backend import Failure, Outcome, Request, StartedRank, StartOrder, Success
from fanfold.worker.border import across, pack, unpack
from fanfold.worker.environ import LentEnvironment, RawChanges, raw
from fanfold.worker.errors import WorkerLostError, WorkerStartError
from fanfold.worker.executing import callable_of, finished, trace_of
from fanfold.worker.ports import HeldPort
from fanfold.worker.rank import RankInfo, enter_context, leave_context, rank_infos
from fanfold.worker.stuck import RankStatus, Whereabouts
from fanfold.worker.travelling import as_it_arrives
from fanfold.worker.watching import enumerate_names, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.worker.limits import Deadline

_NODE = socket.gethostname()
_ONE_AT_A_TIME = threading.RLock()  # all inline ranks share one environment; a rank may drive a group of its own


@dataclass(eq=False)
class InlineRank:
    """A worker of this process, and who it is while one of its methods runs."""

    info: RankInfo
    variables: RawChanges
    port: HeldPort
    whereabouts: Whereabouts
    worker: Any = None
    closed: bool = False
    calls: int = 0


@dataclass(frozen=True)
class InlineHandle:
    """A finished call."""

    outcome: Outcome = field(repr=False)


class InlineBackend:
    """Ranks in this process, one after the other."""

    name = "inline"

    def start(self, order: StartOrder, deadline: Deadline) -> Sequence[StartedRank]:
        """Build the workers in rank order, each in its own rank environment."""
        port = HeldPort("127.0.0.1")
        infos = rank_infos(order.slots, order.group, self.name, port.address)
        doors = [
            InlineRank(info, raw({**order.environment, **info.environment()}), port, Whereabouts(info.rank))
            for info in infos
        ]
        try:
            return self._build(order, doors, deadline)
        except BaseException:
            port.release()
            raise

    def renew(self, order: StartOrder, ranks: Sequence[StartedRank], deadline: Deadline) -> Sequence[StartedRank]:
        """Build workers anew in the places of others."""
        doors = []
        for old in (rank.door for rank in ranks):
            old.worker, old.closed = None, True
            variables = raw({**order.environment, **old.info.environment()})
            doors.append(InlineRank(old.info, variables, old.port, Whereabouts(old.info.rank)))
        return self._build(order, doors, deadline)

    def _build(self, order: StartOrder, doors: Sequence[InlineRank], deadline: Deadline) -> list[StartedRank]:
        with _ONE_AT_A_TIME, LentEnvironment() as environment:
            return [self._build_one(order, door, environment, deadline) for door in doors]

    def _build_one(
        self, order: StartOrder, door: InlineRank, environment: LentEnvironment, deadline: Deadline
    ) -> StartedRank:
        rank, name = door.info.rank, order.names[door.info.rank]
        deadline.check(missing=name)
        recipe = pack(order.recipe.for_rank(rank), f"the recipe of {order.recipe.cls.__qualname__}")
        outcome = _as_rank(door, environment, unpack(recipe))
        if isinstance(outcome, Failure):
            raise WorkerStartError(
                f"rank {rank} ({name}) could not build its {order.recipe.cls.__qualname__}: "
                f"{type(outcome.error).__name__}: {outcome.error}\n{outcome.trace}"
            ) from outcome.error
        door.worker = outcome.value
        return StartedRank(rank, name, _NODE, os.getpid(), door)

    def place(self, value: Any) -> Any:
        """Pack a value once; each rank that reads it unpacks a copy of its own."""
        return pack(value, "an argument")

    def call(self, rank: StartedRank, request: Request) -> InlineHandle:
        """Run the call now."""
        return self.call_all([rank], [request])[0]

    def call_all(self, ranks: Sequence[StartedRank], requests: Sequence[Request]) -> list[InlineHandle]:
        """Run the calls of all ranks now, in order; a rank that fails keeps no other from running."""
        with _ONE_AT_A_TIME, LentEnvironment() as environment:
            return [
                InlineHandle(_as_rank(rank.door, environment, partial(_invoke, rank.door, request)))
                for rank, request in zip(ranks, requests, strict=True)
            ]

    def wait(self, handles: Sequence[InlineHandle], limit: float) -> set[int]:  # noqa: ARG002  # nothing to wait for
        """Return all positions: a call has finished when it has been made."""
        return set(range(len(handles)))

    def on_finished(self, handle: InlineHandle, callback: Callable[[], Any]) -> None:  # noqa: ARG002  # as above
        """Call the callback at once."""
        callback()

    def fetch(self, handle: InlineHandle) -> Outcome:
        """Return what the call came to."""
        return handle.outcome

    def lost(self, ranks: Sequence[StartedRank]) -> Mapping[int, Exception]:
        """Return the ranks that were closed: no other way to be gone."""
        return {rank.rank: _closed(rank.door) for rank in ranks if rank.door.closed}

    def ask(self, ranks: Sequence[StartedRank], limit: float) -> Mapping[int, RankStatus]:  # noqa: ARG002  # answers at once
        """Say where ranks are; from another thread than theirs there is something to see."""
        return {rank.rank: _status(rank.door) for rank in ranks}

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:  # noqa: ARG002  # nothing to wait for
        """Let go of the workers, rank 0 last."""
        for rank in sorted(ranks, key=lambda started: started.rank, reverse=True):
            rank.door.worker, rank.door.closed = None, True
            rank.door.port.release()

    def ticket(self, ranks: Sequence[StartedRank]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what finds these ranks again in this process, where all inline ranks are."""
        return found, (address_of(self, ranks),)


def _as_rank(door: InlineRank, environment: LentEnvironment, action: Callable[[], Any]) -> Outcome:
    environment.lend(door.variables)
    before = enter_context(door.info)
    try:
        return Success(action())
    except Exception as error:  # noqa: BLE001  # whatever a user's method raises is the outcome of the call
        return Failure(as_it_arrives(error), trace_of(error), lost=door.closed, when=time.time())
    finally:
        leave_context(before)
        if changes := environment.take_changes():
            door.variables = {**door.variables, **changes}


def _invoke(door: InlineRank, request: Request) -> Any:
    if door.closed:
        raise _closed(door)
    args = [unpack(value, readonly=request.readonly) for value in request.args]
    kwargs = {name: unpack(value, readonly=request.readonly) for name, value in request.kwargs.items()}
    method = request.method if isinstance(request.method, str) else across(request.method, "a function")
    check = watched(request.label, [*enumerate_names(args), *kwargs.items()]) if request.readonly else None
    door.calls += 1
    door.whereabouts.enter(door.calls, request.label)
    try:
        with serving(request.context):
            result = finished(callable_of(door.worker, method)(*args, **kwargs))
    finally:
        door.whereabouts.leave(door.calls)
    if check is not None:
        check()
    return across(result, f"the result of {request.label}") if request.wanted else None


def _status(door: InlineRank) -> RankStatus:
    return RankStatus(door.info.rank, note=str(_closed(door))) if door.closed else door.whereabouts.status()


def _closed(door: InlineRank) -> WorkerLostError:
    return WorkerLostError(f"rank {door.info.rank} of group {door.info.group!r} was closed")
