"""How others reach the ranks of a processes backend: through their driver, which passes calls on and opens nothing.

A group that is pickled into a worker or another process of the same user carries the relay's address. Who unpickles it
is a visitor: it speaks to the driver, and values travel in parcels whose memory the driver hands through.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import socket
import struct
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.worker.channel import Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.worker import messages as say
    from fanfold.worker.replies import Reply, ReplyHandle


class Ahead(NamedTuple):
    """Visitor: a call for a rank; `number` is the visitor's own."""

    number: int
    rank: int
    run: say.Run


class Back(NamedTuple):
    """Relay: the reply to a call."""

    number: int
    reply: Reply


class Question(NamedTuple):
    """Visitor: what the driver's backend says about ranks, or about calls of the visitor by number."""

    number: int
    what: str
    about: Sequence[int]
    limit: float


class Told(NamedTuple):
    """Relay: the answer to a question."""

    number: int
    answer: Any


class Host(NamedTuple):
    """What the relay needs of the driver's backend."""

    submit: Callable[[int, say.Run], ReplyHandle]
    on_finished: Callable[[ReplyHandle, Callable[[], Any]], None]
    answer: Callable[[Question, Mapping[int, ReplyHandle]], Any]


class Relay:
    """Listens at an address that only processes of this user can use, until it is closed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._folder = ""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connections: set[socket.socket] = set()
        self.address = self._bind()
        self._listener.listen()
        threading.Thread(target=self._welcome, name="fanfold-relay", daemon=True).start()

    def _bind(self) -> str:
        if sys.platform == "linux":  # a name outside of the file system: nothing is left behind, whatever kills whom
            address = f"\0fanfold-{os.getpid()}-{os.urandom(8).hex()}"
        else:
            self._folder = tempfile.mkdtemp(prefix="fanfold-")
            address = os.path.join(self._folder, "relay")  # noqa: PTH118  # a string is all that is wanted
        self._listener.bind(address)
        return address

    def close(self) -> None:
        """Let nobody in any more, and let go of who is in."""
        for connection in (self._listener, *self._connections):
            with contextlib.suppress(OSError):  # it may be over already
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits at it; closing alone does not
            connection.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                if is_own_user(connection):
                    self._connections.add(connection)
                    Visit(self._host, connection, self._connections.discard).start()
                else:
                    connection.close()


def is_own_user(connection: socket.socket) -> bool:
    """Say whether the other end is a process of the same user; where the system cannot tell, the folder's mode does."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    record = struct.Struct("3i")  # pid, uid, gid
    _, user, _ = record.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, record.size))
    return bool(user == os.getuid())


class Visit:
    """One visitor: a thread that listens, and one that answers, so that neither holds up the driver's ranks."""

    def __init__(self, host: Host, connection: socket.socket, leave: Callable[[socket.socket], object]) -> None:
        self._host = host
        self._connection = connection
        self._leave = leave
        self._calls: dict[int, ReplyHandle] = {}
        self._answers: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._listen, name="fanfold-visit", daemon=True).start()
        threading.Thread(target=self._answer, name="fanfold-visit-answers", daemon=True).start()

    def _listen(self) -> None:
        decoder = Decoder()
        with contextlib.suppress(OSError):  # the visitor went, or the relay was closed
            while decoder.receive(self._connection):
                for message in decoder.messages():
                    self._hear(message)
        self._answers.put(None)

    def _hear(self, message: Any) -> None:
        match message:
            case Ahead(number, rank, run):
                handle = self._calls[number] = self._host.submit(rank, run)
                self._host.on_finished(handle, lambda: self._answers.put(lambda: self._back(number)))
            case Question():
                # On a thread of its own: what the driver's backend has to ask its ranks for takes a while.
                threading.Thread(target=self._tell, args=(message,), name="fanfold-visit-question", daemon=True).start()

    def _tell(self, question: Question) -> None:
        answer = self._host.answer(question, dict(self._calls))
        self._answers.put(lambda: Told(question.number, answer))

    def _back(self, number: int) -> Back:
        reply = self._calls.pop(number).reply
        assert reply is not None  # the handle has just said that it has finished
        return Back(number, reply)

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # nobody is left to be told
            while (make := self._answers.get()) is not None:
                frame = encode(make())
                while not frame.send(self._connection):
                    pass
        self._leave(self._connection)
        self._connection.close()
