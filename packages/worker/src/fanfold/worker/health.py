"""Looking after ranks between calls: a thread that asks which are gone, and what it does then."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Literal, TypeAlias

from fanfold.worker.abilities import Watches
from fanfold.worker.errors import GroupUsageError, WorkerLostError
from fanfold.worker.limits import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanfold.worker.ranks import Ranks

LAST_WORDS = 5.0  # seconds that a look, or what is done about its news, gets to end

OnLost: TypeAlias = "Literal['interrupt', 'next_call'] | Callable[[WorkerLostError], object]"


class AlivenessCheck:
    """A thread that looks after the ranks of a group until it is stopped, they are gone, or nobody holds the group."""

    def __init__(self, ranks: Ranks, group: str, every_n_seconds: float, on_lost: OnLost) -> None:
        if not isinstance(ranks.backend, Watches):
            raise GroupUsageError(f"the {ranks.backend.name} backend cannot say which ranks are gone")
        if on_lost not in ("interrupt", "next_call") and not callable(on_lost):
            raise GroupUsageError(f"on_lost is 'interrupt', 'next_call' or a function of the report; got {on_lost!r}")
        seconds(every_n_seconds, "every_n_seconds")
        self._signal = signal_that_wakes() if on_lost == "interrupt" else 0
        self._group = group
        self._on_lost = on_lost
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._look,
            args=(weakref.ref(ranks), every_n_seconds),
            name=f"fanfold-look-after {group}",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that is in the user's own function is not waited for longer than a moment."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(LAST_WORDS)

    def _look(self, where: weakref.ref[Ranks], every_n_seconds: float) -> None:
        while not self._stopped.wait(every_n_seconds):
            ranks = where()
            if ranks is None or ranks.closed:
                return
            lost = ranks.backend.lost(ranks.members)  # type: ignore[attr-defined]  # checked when this was made
            if lost and not ranks.closed:
                self._report(ranks, lost_ranks_error(self._group, lost))
                return
            del ranks  # not held while waiting: a group that nobody holds ends

    def _report(self, ranks: Ranks, error: WorkerLostError) -> None:
        ranks.tell_peers(error.ranks)
        if callable(self._on_lost):
            self._on_lost(error)
            return
        ranks.bad_news = error
        if self._on_lost == "interrupt":
            interrupt_main_thread(error, self._signal)


def signal_that_wakes() -> int:
    """Return a signal that wakes the main thread as Ctrl-C does, also in a process that ignores Ctrl-C.

    What a script starts with `&` ignores it, and so does all that such a process starts.

    Raises:
        GroupUsageError: It ignores Ctrl-C, and this is not the main thread, or the system has no signal to spare.
    """
    import signal  # noqa: PLC0415  # at first use, as logging: together they cost a tenth of this package's import budget

    if callable(signal.getsignal(signal.SIGINT)):
        return signal.SIGINT
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGRTMIN"):
        raise GroupUsageError(
            "on_lost='interrupt' cannot wake the main thread: this process ignores Ctrl-C, as all do that a script "
            "starts with `&`; start the check on the main thread, or take on_lost='next_call' or a function of yours"
        )
    # From the last real-time signal on, as the C library takes the first ones; one that nobody else has a handler for.
    free = (signal.SIG_DFL, signal.default_int_handler)
    spare = next(number for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if signal.getsignal(number) in free)
    signal.signal(spare, signal.default_int_handler)
    return spare


def interrupt_main_thread(error: WorkerLostError, number: int) -> None:
    """Log a report and wake the main thread by that signal."""
    import signal  # noqa: PLC0415  # as above

    from fanfold.worker.logs import logger  # noqa: PLC0415  # as above

    logger.critical("%s", error)
    # A real signal: a simulated one would not wake a thread that sleeps in the system.
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def lost_ranks_error(group: str, lost: Mapping[int, Exception]) -> WorkerLostError:
    """Make the report: which ranks of which group, and how each went."""
    lines = [f"{group} has lost {len(lost)} of its ranks", *(str(error) for _, error in sorted(lost.items()))]
    error = WorkerLostError("\n".join(lines))
    error.ranks = tuple(sorted(lost))
    return error
