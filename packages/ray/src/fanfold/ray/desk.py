"""What a rank is in the middle of, and which of its calls nobody waits for any more; read from other threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fanfold.worker import CancelFlag, RankStatus, Whereabouts, cancellable

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    @contextmanager
    def serving(self, task: str, method: str) -> Iterator[bool]:
        """Note that a call runs, for the time of a block; says whether it is still wanted."""
        flag, began = CancelFlag(), time.time()
        with self._lock:
            wanted = task not in self._dropped
            self._dropped.discard(task)
            self._running[task] = flag
        try:
            with cancellable(flag), self._where.inside(hash(task), method):
                yield wanted
            flag.refuse_result()
        finally:
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
