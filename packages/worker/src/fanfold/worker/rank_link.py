"""The driver's end of one rank process: what was said to it, what came back, what it printed, how it ended.

Everything here is changed under one lock, that of the condition which the whole backend shares.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fanfold.worker import messages as say
from fanfold.worker.channel import Decoder, Frame, encode
from fanfold.worker.errors import CallCancelledError, WorkerLostError
from fanfold.worker.replies import Reply, ReplyHandle

if TYPE_CHECKING:
    import socket
    import subprocess
    import threading
    from collections.abc import Callable

    from fanfold.worker.rank import RankInfo

LOG_LINES = 30  # the last lines of a rank's output, which its error shows


@dataclass(eq=False)
class ProcessHandle(ReplyHandle):
    """A call on one rank of this driver's own."""

    link: RankLink = field(repr=False, kw_only=True)


class RankLink:
    """One rank process as the driver knows it."""

    def __init__(
        self,
        info: RankInfo,
        name: str,
        process: subprocess.Popen[bytes],
        connection: socket.socket,
        changed: threading.Condition,
    ) -> None:
        self.info = info
        self.name = name
        self.process = process
        self.connection = connection
        self.ready: say.Ready | None = None
        self.start_failure: say.Failed | None = None
        self.lost: WorkerLostError | None = None
        self.answers: dict[int, say.Here] = {}
        self.found: dict[int, str] = {}
        self.calls: dict[int, ProcessHandle] = {}
        self.outbox: deque[Frame] = deque()
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.wake: Callable[[], None] = lambda: None
        self._unshown: list[str] = []
        self._changed = changed
        self._decoder = Decoder()
        self._log_rest = b""
        self._last_call = 0

    @property
    def place(self) -> str:
        """Who and where, for people."""
        return f"rank {self.info.rank} ({self.name}, pid {self.process.pid})"

    def submit(self, method: str, message: Callable[[int], say.Run]) -> ProcessHandle:
        """Send a call, or give it the reply of a rank that is lost."""
        with self._changed:
            self._last_call += 1
            handle = ProcessHandle(self._last_call, method, self.lost, link=self)
            if self.lost is None:
                self.calls[handle.call] = handle
                self.post(message(handle.call))
            return handle

    def post(self, message: Any) -> None:
        """Send now what the socket takes now; what is left goes when there is room."""
        with self._changed:
            if self.lost is None:
                self.outbox.append(encode(message))
                self.flush()
        if self.outbox:
            self.wake()

    def flush(self) -> None:
        """Send what is waiting, as far as the socket takes it."""
        with contextlib.suppress(BlockingIOError, ConnectionError):  # full: later; gone: the process's end says it
            while self.outbox:
                if self.outbox[0].send(self.connection):
                    self.outbox.popleft()

    def receive(self) -> bool:
        """Take in what the rank said; say whether it can say more."""
        try:
            is_open = self._decoder.receive(self.connection)
        except BlockingIOError:
            return True
        except ConnectionError:
            is_open = False
        for message in self._decoder.messages():
            self._hear(message)
        return is_open

    def _hear(self, message: Any) -> None:
        match message:
            case say.Ready():
                self.ready = message
            case say.Failed(call=-1):
                self.start_failure = message
            case say.Done(call) | say.Failed(call):
                self._finish(call, message)
            case say.Cancelled(call, found):
                self.found[call] = found
                if found == "dropped":
                    self._finish(
                        call,
                        CallCancelledError(f"{self.calls[call].method} was cancelled before {self.place} began it"),
                    )
            case say.Here(question):
                self.answers[question] = message

    def _finish(self, call: int, reply: Reply) -> None:
        self.calls.pop(call).answer(reply)

    def print(self, data: bytes) -> None:
        """Keep the last lines of the rank's output, and have all of it to show."""
        *lines, self._log_rest = (self._log_rest + data).split(b"\n")
        texts = [line.decode(errors="replace") for line in lines]
        self.log.extend(texts)
        self._unshown += texts

    def show(self) -> None:
        """Write what the rank printed to the driver's standard error, each line with the rank's name.

        Not under the lock: a reader who does not read would hold up everybody else.
        """
        texts, self._unshown = self._unshown, []
        if texts:
            with contextlib.suppress(ValueError, OSError):  # the driver may have closed its own output
                sys.stderr.write("".join(f"[{self.name}] {text}\n" for text in texts))

    def end(self, *, expected: bool) -> None:
        """Take note that the process is over: what was asked of it has no other answer any more."""
        self.print(b"\n" if self._log_rest else b"")
        status = self.process.poll()
        self.lost = lost_error(
            self.place, status, () if expected else tuple(self.log), "was stopped" if expected else "is gone"
        )
        for call in list(self.calls):
            self._finish(call, self.lost)
        self.outbox.clear()


def lost_error(place: str, status: int | None, log: tuple[str, ...], what: str) -> WorkerLostError:
    """Say how a rank process ended."""
    if status is None or status >= 0:
        return WorkerLostError(f"{place} {what}: exit status {status}", exit_status=status, log=log)
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = "; if nobody killed it, the system was out of memory" if name == "SIGKILL" else ""
    return WorkerLostError(f"{place} {what}: killed by {name}{hint}", signal_name=name, log=log)
