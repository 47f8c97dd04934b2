"""What a rank is in the middle of, and which of its calls nobody waits for any more; read from other threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from fanfold.worker import CancelFlag, RankStatus, Whereabouts, cancellable

_REMEMBERED = 4096  # ended calls; a cancellation of an older one is answered as if it had not begun, and drops nothing


_SPANS = 8000  # calls whose times are remembered; as many as fit into one answer


class Desk:
    """The calls of one rank, by Ray's ids of their tasks."""

    def __init__(self, rank: int) -> None:
        self._where = Whereabouts(rank)
        self._running: dict[str, CancelFlag] = {}
        self._dropped: set[str] = set()
        self._ended: deque[str] = deque(maxlen=_REMEMBERED)
        self._spans: deque[tuple[str, float, float]] = deque(maxlen=_SPANS)
        self._lock = threading.Lock()

    def serving(self, task: str, method: str) -> Served:
        """Note that a call runs, for the time of a block; the block is given whether the call is still wanted."""
        return Served(self, task, method)

    def begin(self, task: str, method: str, flag: CancelFlag) -> bool:
        """Note that a call runs; say whether it is still wanted."""
        self._where.enter(hash(task), method)
        with self._lock:
            wanted = task not in self._dropped
            self._dropped.discard(task)
            self._running[task] = flag
        return wanted

    def end(self, task: str, method: str, began: float) -> None:
        """Note that it has ended."""
        self._where.leave(hash(task))
        with self._lock:
            del self._running[task]
            self._ended.append(task)
            self._spans.append((method, began, time.time()))

    def cancel(self, task: str) -> str:
        """Tell a call that nobody waits for it, or keep it from beginning; say "running", "dropped" or "finished"."""
        with self._lock:
            if task in self._running:
                self._running[task].is_set = True
                return "running"
            if task in self._ended:
                return "finished"
            self._dropped.add(task)
            return "dropped"

    def status(self) -> RankStatus:
        """Say where the rank is."""
        return self._where.status()

    def spans(self, since: float) -> dict[str, Any]:
        """Return which calls have ended since a moment of this machine's clock, when each began and ended, and now."""
        with self._lock:
            return {"now": time.time(), "spans": [span for span in self._spans if span[2] >= since]}


class Served:
    """A call that runs, as a block."""

    __slots__ = ("_began", "_cancellable", "_desk", "_flag", "_method", "_task")

    def __init__(self, desk: Desk, task: str, method: str) -> None:
        self._desk, self._task, self._method = desk, task, method
        self._flag = CancelFlag()
        self._cancellable = cancellable(self._flag)

    def __enter__(self) -> bool:
        """Begin the block."""
        self._began = time.time()
        wanted = self._desk.begin(self._task, self._method, self._flag)
        self._cancellable.__enter__()
        return wanted

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """End it; what a method returned that had been told that nobody waits is no result."""
        self._cancellable.__exit__()
        self._desk.end(self._task, self._method, self._began)
        if error is None:
            self._flag.refuse_result()
