"""The process of one rank of the processes backend: build the worker, run calls, answer questions from the side.

User methods run on the main thread, on the thread that built the worker (signals, CUDA contexts and event loops like
that). A second thread reads what the driver says, so that a rank in the middle of a long method still answers where it
is, drops a call that it has not begun, and notices that its driver is gone.
"""

from __future__ import annotations

import faulthandler
import os
import select
import socket
import sys
import threading
import time
from functools import partial
from typing import Any, cast

from fanfold.worker import messages as say
from fanfold.worker.channel import Decoder, encode
from fanfold.worker.executing import callable_of, trace_of
from fanfold.worker.parcel import opened, parcel
from fanfold.worker.rank import enter_rank
from fanfold.worker.serving import BUILDING, Job, RankServer
from fanfold.worker.travelling import for_travel, remote_error

LOOK_AROUND = 2.0  # seconds between looks whether the driver still lives, when it says nothing
LAST_WORDS = 5.0  # seconds that a method may go on after the driver is gone


class RankProcess:
    """This process, once the driver has said which rank it is."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = Decoder()
        self._sending = threading.Lock()
        self._driver = os.getppid()

    def run(self) -> int:
        """Build the worker and serve until the driver says stop; return the exit status."""
        boot = self._first_message()
        sys.path[:] = boot.paths
        sys.argv[:] = boot.arguments
        enter_rank(boot.info, {})
        server = RankServer(boot.info.rank)
        threading.Thread(target=self._listen, args=(server,), name="fanfold-listen", daemon=True).start()
        try:
            worker = server.build(boot.name, lambda: opened(boot.recipe)())  # noqa: PLW0108  # unpacking is part of building
        except Exception as error:  # noqa: BLE001  # whatever a user's constructor raises is what the driver is told
            self._say_failed(BUILDING, error)
            return 1
        self._say(say.Ready(socket.gethostname()))
        server.serve(worker)
        return 0

    def _first_message(self) -> say.Boot:
        while True:
            for message in self._decoder.messages():
                return cast("say.Boot", message)
            if not self._decoder.receive(self._connection):
                raise SystemExit("the driver went away before it said what to build")

    def _job(self, message: say.Run) -> Job:
        return Job(
            call=message.call,
            context=message.context,
            label=message.label,
            begin=partial(_begin, message),
            succeed=partial(self._say_done, message),
            fail=partial(self._say_failed, message.call),
        )

    def _say_done(self, message: say.Run, result: Any) -> None:
        value = parcel(result, f"the result of {message.label}") if message.wanted else None
        self._say(say.Done(message.call, value))

    def _say_failed(self, call: int, error: Exception) -> None:
        words = remote_error(error)
        sent = parcel(for_travel(error), "an error")
        self._say(say.Failed(call, sent, words.class_name, words.text, trace_of(error), time.time()))

    def _say(self, message: Any) -> None:
        frame = encode(message)
        with self._sending:
            while not frame.send(self._connection):
                pass

    def _listen(self, server: RankServer) -> None:
        try:
            while self._driver_lives():
                for message in self._decoder.messages():
                    self._hear(message, server)
        finally:
            server.waiting.no_more()
        time.sleep(LAST_WORDS)
        os._exit(1)  # the main thread is still in a method, and nobody is left to wait for it

    def _driver_lives(self) -> bool:
        try:
            if not select.select([self._connection], [], [], LOOK_AROUND)[0]:
                return os.getppid() == self._driver
            return self._decoder.receive(self._connection)
        except OSError:
            return False

    def _hear(self, message: Any, server: RankServer) -> None:
        match message:
            case say.Run():
                server.waiting.add(self._job(message))
            case say.Cancel(call):
                self._say(say.Cancelled(call, server.waiting.cancel(call)))
            case say.Ask(question):
                self._say(say.Here(question, server.status()))
            case say.Stop():
                server.waiting.no_more()


def _begin(message: say.Run, worker: Any) -> Any:
    method, args, kwargs = _unpacked(message)
    return callable_of(worker, method)(*args, **kwargs)


def _unpacked(message: say.Run) -> tuple[Any, list[Any], dict[str, Any]]:
    try:
        args = [opened(value, readonly=message.readonly) for value in message.args]
        kwargs = {name: opened(value, readonly=message.readonly) for name, value in message.kwargs.items()}
        return opened(message.method), args, kwargs
    except (ImportError, AttributeError) as error:
        error.add_note(
            "What defines a class or function of the call has to be importable on the rank too; the rank has the "
            "driver's sys.path."
        )
        raise


def main(descriptor: int) -> int:
    """Be a rank: the driver speaks through the socket with this descriptor; what is printed goes to it line by line."""
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        cast("Any", stream).reconfigure(line_buffering=True)
    return RankProcess(socket.socket(fileno=descriptor)).run()
