"""The ranks that a group owns or is attached to: who they are, who is still inside an ended call, and their end.

A group, its views and its calls share one of these.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import CallContext, Mesh
from fanfold.worker.backend import Backend, Failure, Handle, Outcome, Request, StartedRank, StartOrder
from fanfold.worker.errors import BusyRankError, WorkerLostError
from fanfold.worker.limits import STOP_LIMIT, Deadline
from fanfold.worker.worker import overrides_hook

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanfold.worker.calls import Call
    from fanfold.worker.health import AlivenessCheck


class Ranks:
    """Members in rank order; `order` is how they were started, None for ranks that others started."""

    def __init__(
        self, backend: Backend, members: Sequence[StartedRank], cls: type, order: StartOrder | None, *, owned: bool
    ) -> None:
        self.backend = backend
        self.members = tuple(members)
        self.cls = cls
        self.order = order
        self.owned = owned
        self.closed = False
        self.call_all = getattr(backend, "call_all", None)
        self.check: AlivenessCheck | None = None
        self.meshes: dict[str, dict[str, Mesh]] = {}
        self.bad_news: WorkerLostError | None = None
        self._left: list[Call] = []
        self._told: set[int] = set()
        self._process = os.getpid()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def close(self, limit: float = STOP_LIMIT) -> None:
        """End the ranks, rank 0 last, if they are owned; twice, or in a forked copy of the driver, does nothing."""
        if os.getpid() != self._process:
            self.closed = True  # and no lock is taken, which a thread of the driver may have held when it forked
            return
        with self._lock:
            if self.closed:
                return
            self.closed = True
        atexit.unregister(self.close)
        if self.owned:
            deadline = Deadline(limit, "the end of the group")
            self._say_goodbye(limit / 2)
            self.backend.stop(self.members, max(1.0, deadline.left()))
        self._left = []

    def _say_goodbye(self, limit: float) -> None:
        if overrides_hook(self.cls, "on_stop"):
            busy = {member.rank for member, _ in self.busy()}
            free = [member for member in reversed(self.members) if member.rank not in busy]
            for member, outcome in self.run_hook(free, "on_stop", (), limit):
                self._tell(member, "on_stop", outcome)

    def note_left(self, call: Call) -> None:
        """Know that a call has ended and ranks may still be inside."""
        with self._lock:
            self._left.append(call)

    def busy(self, ranks: Iterable[int] | None = None) -> list[tuple[StartedRank, Call]]:
        """Return the ranks that are still inside calls that have ended, with those calls."""
        with self._lock:
            self._left = [call for call in self._left if call.inside()]
            calls = list(self._left)
        wanted = None if ranks is None else set(ranks)
        return [(member, call) for call in calls for member in call.inside() if wanted is None or member.rank in wanted]

    def wait_until_free(self, ranks: Iterable[int], deadline: Deadline) -> None:
        """Wait for ranks that are still inside calls that have ended.

        Raises:
            BusyRankError: They are there still; says in which method, and since when.
        """
        if not self._left:
            return
        wanted = list(ranks)
        while busy := self.busy(wanted):
            if deadline.passed():
                raise BusyRankError(f"{deadline.what}: waiting for busy ranks", deadline.seconds, _where(busy))
            self.backend.wait(list(busy[0][1]), min(deadline.left(), 1.0))

    def forget(self, ranks: Iterable[int]) -> None:
        """Forget calls that ended with these ranks inside: the ranks are others now."""
        gone = set(ranks)
        with self._lock:
            self._left = [call for call in self._left if {member.rank for member in call.inside()} - gone]

    def replace(self, renewed: Sequence[StartedRank]) -> None:
        """Take new members in the places of old ones; what meshes the old ones registered is forgotten."""
        by_rank = {member.rank: member for member in (*self.members, *renewed)}
        self.members = tuple(by_rank[rank] for rank in sorted(by_rank))
        self.meshes.clear()
        self.bad_news = None
        self._told -= {member.rank for member in renewed}
        self.forget(member.rank for member in renewed)

    def tell_peers(self, lost: Sequence[int]) -> None:
        """Let the ranks that are left hear of those that are gone, when they are free; once of each."""
        news = [rank for rank in lost if rank not in self._told]
        self._told.update(news)
        if news and overrides_hook(self.cls, "on_peer_lost") and not self.closed:
            left = [member for member in self.members if member.rank not in self._told]
            self.submit_hook(left, "on_peer_lost", (news,))

    def submit_hook(self, members: Sequence[StartedRank], hook: str, args: tuple[Any, ...]) -> list[Handle]:
        """Call a life-cycle method on ranks and do not wait."""
        placed = [self.backend.place(argument) for argument in args]
        contexts = [CallContext(hook, member.rank, len(self.members)) for member in members]
        requests = [Request(hook, placed, {}, context, wanted=False) for context in contexts]
        return [self.backend.call(member, request) for member, request in zip(members, requests, strict=True)]

    def run_hook(
        self, members: Sequence[StartedRank], hook: str, args: tuple[Any, ...], limit: float
    ) -> list[tuple[StartedRank, Outcome | None]]:
        """Call a life-cycle method on ranks, wait a while, and return what came of it; None for what did not end."""
        handles, deadline = self.submit_hook(members, hook, args), Deadline(limit, hook)
        waiting = list(range(len(handles)))
        while waiting and not deadline.passed():
            news = self.backend.wait([handles[index] for index in waiting], deadline.left())
            waiting = [index for place, index in enumerate(waiting) if place not in news]
        return [
            (member, None if index in waiting else self.backend.fetch(handles[index]))
            for index, member in enumerate(members)
        ]

    def _tell(self, member: StartedRank, hook: str, outcome: Outcome | None) -> None:
        if outcome is None or isinstance(outcome, Failure):
            from fanfold.worker.logs import logger  # noqa: PLC0415  # at first use: logging costs what this package may

            said = "did not end in time" if outcome is None else f"failed: {outcome.error}\n{outcome.trace}"
            logger.warning("%s of %s %s", hook, member.name, said)


def close_unheld(ranks: Ranks) -> None:
    """End the ranks of a group that nobody holds; on a thread of its own where this one serves ranks itself."""
    if threading.current_thread().name.startswith("fanfold-"):
        threading.Thread(target=ranks.close, name="fanfold-close").start()
    else:
        ranks.close()


def _where(busy: Sequence[tuple[StartedRank, Call]]) -> str:
    return ", ".join(
        f"rank {member.rank} ({member.name}) has been inside {call.label} for {call.age():.1f} s"
        for member, call in busy
    )
