"""Where ranks are: what each is running, for how long, and at which line."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class RankStatus(NamedTuple):
    """What a rank is in the middle of.

    Attributes:
        rank: Number of the rank.
        method: What it runs; empty when it waits for a call.
        seconds: Since when, in seconds.
        stack: The Python stack of the thread that runs it, as text, innermost call last.
        waiting: Calls that came after it and have not begun.
        note: What else is known, such as the last collective operation, or why nothing is.
    """

    rank: int
    method: str = ""
    seconds: float = 0.0
    stack: str = ""
    waiting: int = 0
    note: str = ""


class Whereabouts:
    """What one rank is running, readable from another thread at any time."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._running: dict[int, tuple[str, float, int]] = {}

    def enter(self, call: int, method: str) -> None:
        """Say that this thread is in a method now."""
        self._running[call] = (method, time.monotonic(), threading.get_ident())

    def leave(self, call: int) -> None:
        """Say that it is no longer."""
        del self._running[call]

    @contextmanager
    def inside(self, call: int, method: str) -> Iterator[None]:
        """Say both, around a block."""
        self.enter(call, method)
        try:
            yield
        finally:
            self.leave(call)

    def status(self, waiting: int = 0) -> RankStatus:
        """Say where the rank is: in the call it has been in longest."""
        running = min(self._running.copy().values(), key=lambda entry: entry[1], default=None)
        if running is None:
            return RankStatus(self.rank, waiting=waiting)
        method, since, thread = running
        return RankStatus(self.rank, method, time.monotonic() - since, stack_of(thread), waiting, last_collective())


def stack_of(thread: int) -> str:
    """Return the Python stack of a thread from the user's method on, as text; empty when the thread is gone."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # the documented way to see another thread's stack
    if frame is None:
        return ""
    from traceback import extract_stack, format_list  # noqa: PLC0415  # wanted only here, and loads the tokenizer

    frames = extract_stack(frame)
    return "".join(format_list(frames[_of_the_user([entry.filename for entry in frames]) :]))


def _of_the_user(files: Sequence[str]) -> int:
    """Say where in a stack the user's method begins: after the first frames of ours that lead to it; 0 for nowhere."""
    ours = [os.path.dirname(file) == _HERE for file in files]  # noqa: PTH120  # a string is all it needs
    return next((i for i in range(1, len(ours)) if ours[i - 1] and not ours[i]), 0)


_HERE = os.path.dirname(__file__)  # noqa: PTH120  # as above: pathlib would cost a sixth of this package's import budget


def last_collective() -> str:
    """Return what torch's flight recorder says of the last collective; empty where it is off or torch not loaded."""
    distributed = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(distributed, "_dump_fr_trace_json", None)
    return _last_entry(dump()) if dump else ""


def _last_entry(trace: str | bytes) -> str:
    import json  # noqa: PLC0415  # wanted only here, and costs a sixth of this package's import budget

    entries = json.loads(trace).get("entries") or []
    if not entries:
        return ""
    last = entries[-1]
    # The number tells who is behind: where one rank is at its 7th and the others are at their 8th.
    number = f" number {last['collective_seq_id']}" if "collective_seq_id" in last else ""
    return f"last collective: {last.get('profiling_name', '?')}{number} ({last.get('state', '?')})"


def render(statuses: Mapping[int, RankStatus], names: Mapping[int, str]) -> str:
    """Write the table: a line for each rank, then each different stack once, with the ranks that are there."""
    lines = [f"{'rank':>4}  {'method':<28} {'seconds':>8}  {'waiting':>7}  worker"]
    lines += [_line(names[rank], status) for rank, status in sorted(statuses.items())]
    for stack, ranks in _folded(statuses).items():
        lines += [f"stack of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}:", stack.rstrip()]
    return "\n".join(lines)


def table_of(backend: Any, members: Sequence[Any], limit: float) -> str:
    """Ask ranks where they are and write the table; a backend that cannot ask leaves notes in it."""
    names = {member.rank: member.name for member in members}
    if hasattr(backend, "ask"):
        return render(backend.ask(members, limit), names)
    note = f"the {backend.name} backend cannot look into its ranks"
    return render({rank: RankStatus(rank, note=note) for rank in names}, names)


def _line(name: str, status: RankStatus) -> str:
    method, seconds = (status.method, f"{status.seconds:.1f}") if status.method else ("-", "-")
    note = f"  {status.note}" if status.note else ""
    return f"{status.rank:>4}  {method:<28} {seconds:>8}  {status.waiting:>7}  {name}{note}"


def _folded(statuses: Mapping[int, RankStatus]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for rank, status in sorted(statuses.items()):
        if status.stack:
            ranks.setdefault(status.stack, []).append(rank)
    return ranks
