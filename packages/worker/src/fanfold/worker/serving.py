"""How one rank works off its calls, in a process or a thread of its own: in order, on the thread that built its worker.

A worker class with asynchronous methods gets an event loop on that thread instead, and its calls may overlap.
"""

from __future__ import annotations

import importlib
import queue
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import CallContext
from fanfold.dispatch import serving as in_call
from fanfold.worker.cancelling import CancelFlag, cancellable
from fanfold.worker.executing import finished, finished_in_loop, needs_loop
from fanfold.worker.stuck import RankStatus, Whereabouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUILDING = -1  # the number of the call that builds the worker


@dataclass(frozen=True)
class Job:
    """One call as its rank sees it.

    Attributes:
        call: Its number on this rank.
        context: What the method can learn about the call.
        label: The method's name for people, with its role where it has one.
        begin: Runs the method of the worker, as far as it goes without waiting.
        succeed: Takes what the method returned in the end.
        fail: Takes what it raised.
    """

    call: int
    context: CallContext
    label: str
    begin: Callable[[Any], Any]
    succeed: Callable[[Any], None]
    fail: Callable[[Exception], None]


@dataclass
class Waiting:
    """Calls that came and have not begun, and those that are running."""

    _jobs: queue.SimpleQueue[Job | None] = field(default_factory=queue.SimpleQueue)
    _flags: dict[int, CancelFlag] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False

    def add(self, job: Job) -> None:
        """Take a call in."""
        with self._lock:
            self._flags[job.call] = CancelFlag()
        self._jobs.put(job)

    def next(self) -> Job | None:
        """Wait for the next call; None when there will be no more."""
        return self._jobs.get()

    def begin(self, call: int) -> CancelFlag | None:
        """Claim a call for running; None if it was cancelled before."""
        with self._lock:
            self._begun.add(call)
            return None if self._flags[call].is_set else self._flags[call]

    def end(self, call: int) -> None:
        """Forget a call."""
        with self._lock:
            self._begun.discard(call)
            del self._flags[call]

    def cancel(self, call: int) -> str:
        """Set the flag of a call; say what that means for it: "dropped", "running", or "finished" before."""
        with self._lock:
            if call not in self._flags:
                return "finished"
            self._flags[call].is_set = True
            return "running" if call in self._begun else "dropped"

    def no_more(self) -> None:
        """Let the running call end, begin no other."""
        self.is_over = True
        with self._lock:
            for flag in self._flags.values():
                flag.is_set = True
        self._jobs.put(None)

    def count(self) -> int:
        """Say how many calls wait."""
        with self._lock:
            return len(self._flags) - len(self._begun)


class RankServer:
    """The thread of one rank at work."""

    def __init__(self, rank: int) -> None:
        self.waiting = Waiting()
        self._where = Whereabouts(rank)

    def status(self) -> RankStatus:
        """Say where the rank is; from any thread."""
        return self._where.status(self.waiting.count())

    def build(self, name: str, make: Callable[[], Any]) -> Any:
        """Build the worker, visibly from outside."""
        with self._where.inside(BUILDING, f"{name} (building the worker)"):
            return make()

    def serve(self, worker: Any) -> None:
        """Work off calls until there will be no more."""
        if needs_loop(type(worker)):
            importlib.import_module("asyncio").run(self._serve_in_loop(worker))
            return
        while (job := self.waiting.next()) is not None:
            with self._running(job) as flag:
                if flag is not None:
                    self._succeed(job, flag, finished(job.begin(worker)))

    async def _serve_in_loop(self, worker: Any) -> None:
        asyncio = importlib.import_module("asyncio")
        running: set[Any] = set()
        # A helper thread waits for calls; the methods themselves stay on this one.
        while (job := await asyncio.to_thread(self.waiting.next)) is not None:
            task = asyncio.create_task(self._run_in_loop(job, worker))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _run_in_loop(self, job: Job, worker: Any) -> None:
        with self._running(job) as flag:
            if flag is not None:
                self._succeed(job, flag, await finished_in_loop(job.begin(worker)))

    def _succeed(self, job: Job, flag: CancelFlag, result: Any) -> None:
        if flag.was_noticed and self.waiting.is_over:
            return  # the end of this rank is the outcome, as it is for the calls that wait behind
        flag.refuse_result()
        job.succeed(result)

    @contextmanager
    def _running(self, job: Job) -> Iterator[CancelFlag | None]:
        flag = self.waiting.begin(job.call)
        try:
            with (
                self._where.inside(job.call, job.label),
                in_call(job.context),
                cancellable(flag or CancelFlag()),
            ):
                yield flag
        except Exception as error:  # noqa: BLE001  # whatever a user's method raises is the outcome of the call
            job.fail(error)
        finally:
            self.waiting.end(job.call)
