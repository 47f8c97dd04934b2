"""The process of one rank of the processes backend: build the worker, run calls, answer questions from the side.

User methods run on the main thread, one after the other, on the thread that built the worker (signals, CUDA contexts and
event loops like that). A second thread reads what the driver says, so that a rank in the middle of a long method still
answers where it is, drops a call that it has not begun, and notices that its driver is gone.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import queue
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from fanfold.dispatch import serving
from fanfold.worker import messages as say
from fanfold.worker.cancelling import CancelFlag, cancellable
from fanfold.worker.channel import Decoder, encode
from fanfold.worker.executing import callable_of, finished, finished_in_loop, needs_loop, trace_of
from fanfold.worker.parcel import opened, parcel
from fanfold.worker.rank import enter_rank
from fanfold.worker.stuck import Whereabouts
from fanfold.worker.travelling import for_travel, remote_error

LOOK_AROUND = 2.0  # seconds between looks whether the driver still lives, when it says nothing
LAST_WORDS = 5.0  # seconds that a method may go on after the driver is gone

BUILDING = -1  # the number of the call that builds the worker


@dataclass
class Waiting:
    """Calls that came and have not begun, and those that are running."""

    jobs: queue.SimpleQueue[say.Run | None] = field(default_factory=queue.SimpleQueue)
    flags: dict[int, CancelFlag] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, job: say.Run) -> None:
        """Take a call in."""
        with self.lock:
            self.flags[job.call] = CancelFlag()
        self.jobs.put(job)

    def begin(self, call: int) -> CancelFlag | None:
        """Claim a call for running; None if it was cancelled before."""
        with self.lock:
            self.begun.add(call)
            return None if self.flags[call].is_set else self.flags[call]

    def end(self, call: int) -> None:
        """Forget a call."""
        with self.lock:
            self.begun.discard(call)
            del self.flags[call]

    def cancel(self, call: int) -> str:
        """Set the flag of a call; say what that means for it."""
        with self.lock:
            if call not in self.flags:
                return "finished"
            self.flags[call].is_set = True
            return "running" if call in self.begun else "dropped"

    def no_more(self) -> None:
        """Let the running call end, begin no other."""
        with self.lock:
            for flag in self.flags.values():
                flag.is_set = True
        self.jobs.put(None)

    def count(self) -> int:
        """Say how many calls wait."""
        with self.lock:
            return len(self.flags) - len(self.begun)


class RankProcess:
    """This process, once the driver has said which rank it is."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = Decoder()
        self._sending = threading.Lock()
        self._driver = os.getppid()
        self._waiting = Waiting()
        self._worker: Any = None
        self._where = Whereabouts(rank=-1)

    def run(self) -> int:
        """Build the worker and serve until the driver says stop; return the exit status."""
        boot = self._first_message()
        self._where = Whereabouts(boot.info.rank)
        sys.path[:] = boot.paths
        sys.argv[:] = boot.arguments
        enter_rank(boot.info, {})
        threading.Thread(target=self._listen, name="fanfold-listen", daemon=True).start()
        with self._reporting(BUILDING), self._where.inside(BUILDING, f"{boot.name} (building the worker)"):
            self._worker = opened(boot.recipe)()
        if self._worker is None:
            return 1
        self._say(say.Ready(socket.gethostname()))
        self._serve()
        return 0

    def _first_message(self) -> say.Boot:
        while True:
            for message in self._decoder.messages():
                return cast("say.Boot", message)
            if not self._decoder.receive(self._connection):
                raise SystemExit("the driver went away before it said what to build")

    def _serve(self) -> None:
        if needs_loop(type(self._worker)):
            importlib.import_module("asyncio").run(self._serve_in_loop())
            return
        while (job := self._waiting.jobs.get()) is not None:
            with self._running(job) as wanted:
                if wanted:
                    self._reply(job, finished(self._begin(job)))

    async def _serve_in_loop(self) -> None:
        asyncio = importlib.import_module("asyncio")
        running: set[Any] = set()
        # A helper thread waits for calls; the methods themselves stay on this one.
        while (job := await asyncio.to_thread(self._waiting.jobs.get)) is not None:
            task = asyncio.create_task(self._answer_in_loop(job))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _answer_in_loop(self, job: say.Run) -> None:
        with self._running(job) as wanted:
            if wanted:
                self._reply(job, await finished_in_loop(self._begin(job)))

    @contextmanager
    def _running(self, job: say.Run) -> Iterator[bool]:
        flag = self._waiting.begin(job.call)
        try:
            with self._reporting(job.call), self._where.inside(job.call, job.context.method):
                with serving(job.context), cancellable(flag or CancelFlag()):
                    yield flag is not None
        finally:
            self._waiting.end(job.call)

    def _begin(self, job: say.Run) -> Any:
        args = [opened(value, readonly=job.readonly) for value in job.args]
        kwargs = {name: opened(value, readonly=job.readonly) for name, value in job.kwargs.items()}
        return callable_of(self._worker, opened(job.method))(*args, **kwargs)

    def _reply(self, job: say.Run, result: Any) -> None:
        value = parcel(result, f"the result of {job.context.method}") if job.wanted else None
        self._say(say.Done(job.call, value))

    @contextmanager
    def _reporting(self, call: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever a user's method raises is the outcome of the call
            words = remote_error(error)
            sent = parcel(for_travel(error), "an error")
            self._say(say.Failed(call, sent, words.class_name, words.text, trace_of(error), time.time()))

    def _say(self, message: Any) -> None:
        frame = encode(message)
        with self._sending:
            while not frame.send(self._connection):
                pass

    def _listen(self) -> None:
        try:
            while self._driver_lives():
                for message in self._decoder.messages():
                    self._hear(message)
        finally:
            self._waiting.no_more()
        time.sleep(LAST_WORDS)
        os._exit(1)  # the main thread is still in a method, and nobody is left to wait for it

    def _driver_lives(self) -> bool:
        if not select.select([self._connection], [], [], LOOK_AROUND)[0]:
            return os.getppid() == self._driver
        try:
            return self._decoder.receive(self._connection)
        except ConnectionError:
            return False

    def _hear(self, message: Any) -> None:
        match message:
            case say.Run():
                self._waiting.add(message)
            case say.Cancel(call):
                self._say(say.Cancelled(call, self._waiting.cancel(call)))
            case say.Ask(question):
                self._say(say.Here(question, self._where.status(self._waiting.count())))
            case say.Stop():
                self._waiting.no_more()


def main(descriptor: int) -> int:
    """Be a rank: the driver speaks through the socket with this descriptor. What is printed goes to the driver, line by line."""
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        cast("Any", stream).reconfigure(line_buffering=True)
    with socket.socket(fileno=descriptor) as connection:
        return RankProcess(connection).run()
