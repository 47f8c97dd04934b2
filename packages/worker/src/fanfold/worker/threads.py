"""The backend with a thread for each rank in this process: for methods whose ranks wait for each other.

Ranks share the process, so its environment says nothing about any one of them: who a rank is, it learns from
`self.rank` and `current_rank()`. `os.environ["RANK"]` is not set by this backend; absent is better than wrong.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fanfold.worker.address_book import address_of, found
from fanfold.worker.backend import Failure, Outcome, Request, StartedRank, StartOrder, Success
from fanfold.worker.border import across, pack_now, unpack
from fanfold.worker.errors import CallCancelledError, GroupUsageError, WorkerLostError, WorkerStartError
from fanfold.worker.executing import callable_of, trace_of
from fanfold.worker.limits import Deadline
from fanfold.worker.ports import HeldPort
from fanfold.worker.rank import RankInfo, enter_context, rank_infos
from fanfold.worker.serving import Job, RankServer
from fanfold.worker.travelling import as_it_arrives
from fanfold.worker.watching import enumerate_names, watched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.worker.stuck import RankStatus

_NODE = socket.gethostname()


@dataclass(eq=False)
class ThreadHandle:
    """A call on one rank."""

    call: int
    door: ThreadRank = field(repr=False)
    outcome: Outcome | None = field(default=None, repr=False)
    callbacks: list[Callable[[], Any]] = field(default_factory=list, repr=False)


class ThreadRank:
    """The thread of one rank, and what it has not answered yet."""

    def __init__(self, info: RankInfo, name: str, port: HeldPort, changed: threading.Condition) -> None:
        self.info = info
        self.name = name
        self.port = port
        self.server = RankServer(info.rank)
        self.built: Outcome | None = None
        self.closed = False
        self._changed = changed
        self._open: dict[int, ThreadHandle] = {}
        self._last_call = 0
        self._thread: threading.Thread | None = None

    def start(self, recipe: Any) -> None:
        """Build the worker, on the rank's own thread, and serve."""
        self._thread = threading.Thread(target=self._run, args=(recipe,), name=f"fanfold-{self.name}", daemon=True)
        self._thread.start()

    def _run(self, recipe: Any) -> None:
        enter_context(self.info)  # for good: the thread has a context of its own
        try:
            worker = self.server.build(self.name, lambda: unpack(recipe)())  # noqa: PLW0108  # unpacking is part of building
        except Exception as error:  # noqa: BLE001  # whatever a user's constructor raises is what the driver is told
            self._settle_build(Failure(as_it_arrives(error), trace_of(error), when=time.time()))
            return
        self._settle_build(Success(None))
        self.server.serve(worker)

    def _settle_build(self, outcome: Outcome) -> None:
        with self._changed:
            self.built = outcome
            self._changed.notify_all()

    def submit(self, request: Request) -> ThreadHandle:
        """Queue a call behind those that the rank has already."""
        with self._changed:
            self._last_call += 1
            handle = ThreadHandle(self._last_call, self)
            if self.closed:
                handle.outcome = Failure(self.gone(), lost=True)
                return handle
            self._open[handle.call] = handle
        checks: list[Callable[[], None]] = []
        job = Job(
            handle.call,
            request.context,
            request.label,
            partial(_begin, request, checks),
            partial(self._done, handle, request, checks),
            partial(self._failed, handle),
        )
        self.server.waiting.add(job)
        return handle

    def gone(self) -> WorkerLostError:
        """Make the error of a rank that was closed."""
        return WorkerLostError(f"rank {self.info.rank} ({self.name}) was closed")

    def status(self) -> RankStatus:
        """Say where the rank is; a closed one may still be inside a method without end."""
        status = self.server.status()
        return status._replace(note=str(self.gone())) if self.closed else status

    def _done(self, handle: ThreadHandle, request: Request, checks: Sequence[Callable[[], None]], result: Any) -> None:
        for check in checks:
            check()
        self.settle(handle, Success(across(result, f"the result of {request.label}") if request.wanted else None))

    def _failed(self, handle: ThreadHandle, error: Exception) -> None:
        self.settle(handle, Failure(as_it_arrives(error), trace_of(error), when=time.time()))

    def settle(self, handle: ThreadHandle, outcome: Outcome) -> None:
        """Answer a call, once."""
        with self._changed:
            if self._open.pop(handle.call, None) is None:
                return
            handle.outcome = outcome
            for callback in handle.callbacks:
                callback()
            self._changed.notify_all()

    def close(self) -> None:
        """Begin no other call; what is not answered by now never will be."""
        self.server.waiting.no_more()
        with self._changed:
            self.closed = True
            waiting = list(self._open.values())
        for handle in waiting:
            self.settle(handle, Failure(self.gone(), lost=True))

    def join(self, limit: float) -> None:
        """Wait for the thread; one that is in a method without end cannot be ended."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(limit)


class ThreadsBackend:
    """Ranks in threads of this process."""

    name = "threads"

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def start(self, order: StartOrder, deadline: Deadline) -> Sequence[StartedRank]:
        """Build all workers at once, each on its own thread.

        Raises:
            GroupUsageError: The order wants variables in the environment, which ranks share with the driver.
        """
        if order.environment:
            raise GroupUsageError(
                f"ranks in threads share the driver's environment; worker_env ({', '.join(order.environment)}) cannot "
                "be set for them; use backend='inline' or backend='processes'"
            )
        port = HeldPort("127.0.0.1")
        infos = rank_infos(order.slots, order.group, self.name, port.address)
        return self._build(
            order, [ThreadRank(info, order.names[info.rank], port, self._changed) for info in infos], deadline
        )

    def renew(self, order: StartOrder, ranks: Sequence[StartedRank], deadline: Deadline) -> Sequence[StartedRank]:
        """Build workers anew on new threads; a thread that is in a method goes on alone, unheard."""
        for rank in ranks:
            rank.door.close()
        doors = [ThreadRank(rank.door.info, rank.name, rank.door.port, self._changed) for rank in ranks]
        return self._build(order, doors, deadline)

    def _build(self, order: StartOrder, doors: Sequence[ThreadRank], deadline: Deadline) -> list[StartedRank]:
        try:
            for door in doors:
                door.start(
                    pack_now(order.recipe.for_rank(door.info.rank), f"the recipe of {order.recipe.cls.__qualname__}")
                )
            self._wait_until_built(order, doors, deadline)
        except BaseException:
            for door in doors:
                door.close()
            raise
        return [StartedRank(door.info.rank, door.name, _NODE, os.getpid(), door) for door in doors]

    def _wait_until_built(self, order: StartOrder, doors: Sequence[ThreadRank], deadline: Deadline) -> None:
        def settled() -> bool:
            return all(door.built for door in doors) or any(isinstance(door.built, Failure) for door in doors)

        with self._changed:
            self._changed.wait_for(settled, deadline.left())
        for door in doors:
            if isinstance(door.built, Failure):
                raise WorkerStartError(
                    f"rank {door.info.rank} ({door.name}) could not build its {order.recipe.cls.__qualname__}: "
                    f"{type(door.built.error).__name__}: {door.built.error}\n{door.built.trace}"
                ) from door.built.error
        missing = [door.name for door in doors if not door.built]
        if missing:
            deadline.check(missing=", ".join(missing))

    def place(self, value: Any) -> Any:
        """Copy a value out of the driver's hands, once; each rank that reads it unpacks a copy of its own."""
        return pack_now(value, "an argument")

    def call(self, rank: StartedRank, request: Request) -> ThreadHandle:
        """Queue a call."""
        handle: ThreadHandle = rank.door.submit(request)
        return handle

    def wait(self, handles: Sequence[ThreadHandle], limit: float) -> set[int]:
        """Return the positions of finished calls as soon as there is one, or an empty set after `limit` seconds."""

        def finished() -> set[int]:
            return {position for position, handle in enumerate(handles) if handle.outcome is not None}

        with self._changed:
            self._changed.wait_for(finished, limit)
            return finished()

    def on_finished(self, handle: ThreadHandle, callback: Callable[[], Any]) -> None:
        """Have a callback called once when the call has finished; at once if it has finished already."""
        with self._changed:
            if handle.outcome is None:
                handle.callbacks.append(callback)
                return
        callback()

    def fetch(self, handle: ThreadHandle) -> Outcome:
        """Return the outcome of a finished call."""
        assert handle.outcome is not None  # fetched only when it has finished
        return handle.outcome

    def cancel(self, handles: Sequence[ThreadHandle], limit: float) -> list[str]:  # noqa: ARG002  # answers at once
        """Drop what has not begun, flag what is running; say for each "dropped", "running" or "finished"."""
        found = [handle.door.server.waiting.cancel(handle.call) for handle in handles]
        for handle, what in zip(handles, found, strict=True):
            if what == "dropped":
                error = CallCancelledError(f"a call was cancelled before rank {handle.door.info.rank} began it")
                handle.door.settle(handle, Failure(error))
        return found

    def lost(self, ranks: Sequence[StartedRank]) -> Mapping[int, Exception]:
        """Return the ranks that were closed: no other way to be gone."""
        return {rank.rank: rank.door.gone() for rank in ranks if rank.door.closed}

    def ask(self, ranks: Sequence[StartedRank], limit: float) -> Mapping[int, RankStatus]:  # noqa: ARG002  # answers at once
        """Say where ranks are."""
        return {rank.rank: rank.door.status() for rank in ranks}

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:
        """End the threads, rank 0 last; one that does not end within its share of the limit goes on alone."""
        deadline = Deadline(limit, "the end of threads")
        for rank in sorted(ranks, key=lambda started: started.rank, reverse=True):
            rank.door.close()
            rank.door.join(min(deadline.left(), BUSY_GRACE))
            rank.door.port.release()

    def ticket(self, ranks: Sequence[StartedRank]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what finds these ranks again in this process, where all threads are."""
        return found, (address_of(self, ranks),)


BUSY_GRACE = 2.0  # seconds that a rank in the middle of a call gets to end it when the group is closed


def _begin(request: Request, checks: list[Callable[[], None]], worker: Any) -> Any:
    args = [unpack(value, readonly=request.readonly) for value in request.args]
    kwargs = {name: unpack(value, readonly=request.readonly) for name, value in request.kwargs.items()}
    method = request.method if isinstance(request.method, str) else across(request.method, "a function")
    if request.readonly:
        checks.append(watched(request.label, [*enumerate_names(args), *kwargs.items()]))
    return callable_of(worker, method)(*args, **kwargs)
