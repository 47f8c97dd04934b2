"""The ranks of another process's driver, reached through its relay: a backend that calls and starts nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any

from fanfold.worker import address_book
from fanfold.worker import messages as say
from fanfold.worker.backend import Request, StartedRank, StartOrder
from fanfold.worker.channel import Decoder, encode
from fanfold.worker.errors import GroupUsageError, WorkerLostError
from fanfold.worker.limits import CANCEL_LIMIT
from fanfold.worker.parcel import parcel
from fanfold.worker.relay import Ahead, Back, Question, Told
from fanfold.worker.replies import AwaitsReplies, ReplyHandle
from fanfold.worker.stuck import RankStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.worker.limits import Deadline

ANSWER_LIMIT = 5.0  # seconds beyond a question's own limit that its answer may take through the relay
Ticket = tuple[str, "address_book.Address", "tuple[tuple[int, str, str, int], ...]"]

_open: weakref.WeakValueDictionary[str, VisitingBackend] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def arrive(*ticket: Any) -> tuple[Any, list[StartedRank]]:
    """Return the backend and the ranks of a group that was pickled: at home the driver's own, elsewhere a visitor's.

    Raises:
        GroupUsageError: The group has ended, or its driver is on another machine or another user's.
    """
    address, at_home, ranks = ticket
    if at_home.process == os.getpid():
        return address_book.found(at_home)
    with _opening:
        backend = _open.get(address) or VisitingBackend(address)
        _open[address] = backend
    backend.tickets.update({number: (number, name, node, pid) for number, name, node, pid in ranks})
    backend.home = at_home
    return backend, [StartedRank(number, name, node, pid, number) for number, name, node, pid in ranks]


class VisitingBackend(AwaitsReplies):
    """Ranks that another process started and ends.

    Args:
        address: That of the relay.
    """

    name = "processes"

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._line = Line(address, self._changed)
        self.tickets: dict[int, tuple[int, str, str, int]] = {}
        self.home: Any = None
        weakref.finalize(self, self._line.hang_up)

    def start(self, order: StartOrder, deadline: Deadline) -> Sequence[StartedRank]:  # noqa: ARG002  # starts nothing
        """Refuse: who visits ranks starts none."""
        raise GroupUsageError("this backend reaches ranks of another process and starts none of its own")

    def place(self, value: Any) -> Any:
        """Copy a value out of the caller's hands, once, however many ranks read it."""
        return parcel(value, "an argument")

    def call(self, rank: StartedRank, request: Request) -> ReplyHandle:
        """Send a call to the relay, which passes it on."""
        method = request.method if isinstance(request.method, str) else parcel(request.method, "a function")
        run = say.Run(0, method, *request[1:6], request.label)
        return self._line.submit(rank.rank, run)

    def cancel(self, handles: Sequence[ReplyHandle], limit: float) -> list[str]:
        """Drop what has not begun, flag what is running; say for each "dropped", "running" or "finished"."""
        found = self._line.ask("cancel", [handle.call for handle in handles if handle.reply is None], limit) or {}
        return [found.get(handle.call, "finished" if handle.reply is not None else "running") for handle in handles]

    def ask(self, ranks: Sequence[StartedRank], limit: float) -> Mapping[int, RankStatus]:
        """Say where ranks are, as their driver says it."""
        answer = self._line.ask("ask", [rank.rank for rank in ranks], limit)
        note = f"the driver of these ranks did not answer within {limit + ANSWER_LIMIT:g} s"
        return answer or {rank.rank: RankStatus(rank.rank, note=note) for rank in ranks}

    def lost(self, ranks: Sequence[StartedRank]) -> Mapping[int, Exception]:
        """Return the ranks that are gone: all of them where their driver is."""
        if self._line.over is not None:
            return dict.fromkeys([rank.rank for rank in ranks], self._line.over)
        return self._line.ask("lost", [rank.rank for rank in ranks], CANCEL_LIMIT) or {}

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:
        """Do nothing: the ranks are others'."""

    def ticket(self, ranks: Sequence[StartedRank]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what reaches these ranks from yet another process."""
        return arrive, (self._address, self.home, tuple(self.tickets[rank.rank] for rank in ranks))


class Line:
    """The connection to a relay, and the thread that listens to it."""

    def __init__(self, address: str, changed: threading.Condition) -> None:
        self.over: WorkerLostError | None = None
        self._changed = changed
        self._calls: dict[int, ReplyHandle] = {}
        self._told: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._sending = threading.Lock()
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connection.connect(address)
        except OSError as error:
            self._connection.close()
            raise GroupUsageError(
                f"a group of the processes backend cannot be reached from here: {error}; it has ended, or its driver "
                "is on another machine or another user's"
            ) from error
        threading.Thread(target=self._listen, name="fanfold-visitor", daemon=True).start()

    def hang_up(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):  # the other end may have done it
            self._connection.shutdown(socket.SHUT_RDWR)

    def submit(self, rank: int, run: say.Run) -> ReplyHandle:
        """Send a call, or give it the reply of a rank that is lost."""
        with self._changed:
            handle = ReplyHandle(next(self._numbers), run.label, self.over)
            if self.over is None:
                self._calls[handle.call] = handle
        if handle.reply is None:
            self._say(Ahead(handle.call, rank, run))
        return handle

    def ask(self, what: str, about: Sequence[int], limit: float) -> Any:
        """Ask the relay and wait for its answer; None where it gives none in time."""
        number = next(self._numbers)
        self._say(Question(number, what, list(about), limit))
        with self._changed:
            self._changed.wait_for(lambda: number in self._told or self.over, limit + ANSWER_LIMIT)
            return self._told.pop(number, None)

    def _say(self, message: Any) -> None:
        frame = encode(message)
        with self._sending, contextlib.suppress(OSError):  # the listening thread tells that the other end is gone
            while not frame.send(self._connection):
                pass

    def _listen(self) -> None:
        decoder = Decoder()
        with contextlib.suppress(OSError):
            while decoder.receive(self._connection):
                for message in decoder.messages():
                    self._hear(message)
        with self._changed:
            self.over = WorkerLostError("the group was closed, or its driver is gone")
            for handle in self._calls.values():
                handle.answer(self.over)
            self._calls.clear()
            self._changed.notify_all()
        self._connection.close()

    def _hear(self, message: Any) -> None:
        with self._changed:
            match message:
                case Back(number, reply):
                    self._calls.pop(number).answer(reply)
                case Told(number, answer):
                    self._told[number] = answer
            self._changed.notify_all()
