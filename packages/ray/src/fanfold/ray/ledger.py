"""What a call has moved and how long it took: counted where it happens, always, for it costs a few additions.

Bytes are what Ray says of its objects, as far as this process knows. Ray moves whole objects, so a rank that needs a
row of a part is counted with the whole part.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from fanfold.ray.parcels import Parcel

import ray
from ray.experimental import get_local_object_locations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from fanfold.ray.refs import Ref

PHASES = ("plan", "put", "submit", "execute", "fetch", "collect")


@dataclass
class CallLedger:
    """One call in numbers.

    Attributes:
        method: Class and method.
        puts: How many objects the driver put into the store.
        bytes_put: Their bytes.
        bytes_inline: Bytes of arguments that travelled with the call itself.
        parts: By rank, how many stored objects its arguments refer to.
        bytes_fetched: By rank, the bytes of those, as far as the driver knows them.
        results: How many results the driver brought.
        bytes_collected: Their bytes.
        seconds: Time of the driver by phase: plan, put, submit, execute (waiting for ranks), fetch, collect.
        began: When the call began, in seconds since the epoch.
        ended: When the driver went on; for a call that does not block, before it was over.
    """

    method: str = ""
    puts: int = 0
    bytes_put: int = 0
    bytes_inline: int = 0
    parts: dict[int, int] = field(default_factory=dict)
    bytes_fetched: dict[int, int] = field(default_factory=dict)
    results: int = 0
    bytes_collected: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    began: float = field(default_factory=time.time)
    ended: float = 0.0
    spans: list[tuple[str, float, float]] = field(default_factory=list, repr=False)
    inside: float = field(default=0.0, repr=False)
    sent: dict[int, Sequence[Ref]] = field(default_factory=dict, repr=False)
    asked: Any = field(default=None, repr=False)

    def note_placed(self, placed: Any, given: Any) -> None:
        """Count an argument that was placed."""
        if isinstance(placed, ray.ObjectRef) and placed is not given:
            self.puts += 1
            self.bytes_put += sum(sizes_of([placed]))
        elif isinstance(placed, Parcel):
            self.bytes_inline += placed.size

    def note_sent(self, rank: int, references: Sequence[Ref]) -> None:
        """Count the stored objects that a rank's arguments refer to."""
        if references:
            self.parts[rank] = len(references)
            self.sent[rank] = references

    def note_over(self) -> None:
        """Count the bytes of what was sent: of parts that other ranks have just made, Ray hears a moment later."""
        self.bytes_fetched.update({rank: sum(sizes_of(references)) for rank, references in self.sent.items()})
        self.sent.clear()

    def note_brought(self, references: Sequence[Ref]) -> None:
        """Count results that were brought to the driver."""
        self.results += len(references)
        self.bytes_collected += sum(sizes_of(references))

    def as_data(self) -> dict[str, Any]:
        """Return all of it as plain data that JSON can hold."""
        own = {"spans", "inside", "asked", "sent"}
        data = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in own}
        return json.loads(json.dumps(data))  # type: ignore[no-any-return]  # and nothing that changes later

    def __str__(self) -> str:
        ranks = ", ".join(
            f"rank {rank}: {count} parts, {_size(self.bytes_fetched.get(rank, 0))}"
            for rank, count in sorted(self.parts.items())
        )
        times = ", ".join(f"{phase} {seconds * 1000:.1f} ms" for phase, seconds in self.seconds.items() if seconds)
        return (
            f"{self.method}: put {self.puts} objects, {_size(self.bytes_put)} ({_size(self.bytes_inline)} inline); "
            f"{ranks or 'no parts'}; brought {self.results} results, {_size(self.bytes_collected)}; {times}"
        )


class _Current(threading.local):
    ledger: CallLedger | None = None


_current = _Current()


def current_ledger() -> CallLedger | None:
    """Return the ledger of the call that this thread is making."""
    return _current.ledger


@contextmanager
def recording(method: str, asked: Any = None) -> Iterator[CallLedger]:
    """Keep a ledger for the time of a block; a call made inside of another has its own.

    Args:
        method: Class and method.
        asked: Whoever knows the ranks' side of it: has `spans(since)`.
    """
    outer, began = _current.ledger, time.perf_counter()
    ledger = _current.ledger = CallLedger(method, asked=asked)
    try:
        yield ledger
    finally:
        _current.ledger = outer
        ledger.ended, known = time.time(), sum(ledger.seconds.values())
        ledger.seconds["collect"] += max(0.0, time.perf_counter() - began - known)
        ledger.note_over()
        for listener in _listeners:
            listener(ledger)


def phase(name: str) -> AbstractContextManager[None]:
    """Count the time of a block to a phase of the call that this thread is making."""
    ledger = _current.ledger
    return _NOT_COUNTED if ledger is None else _Phase(ledger, name)


_NOT_COUNTED = nullcontext()


class _Phase:
    """A block whose time is counted; no generator, as there are many in a small call."""

    __slots__ = ("_began", "_ledger", "_name", "_outside")

    def __init__(self, ledger: CallLedger, name: str) -> None:
        self._ledger = ledger
        self._name = name

    def __enter__(self) -> None:
        self._outside, self._ledger.inside = self._ledger.inside, 0.0
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        ledger, passed = self._ledger, time.perf_counter() - self._began
        ledger.seconds[self._name] += passed - ledger.inside  # what is inside counts as what it is
        ledger.inside = self._outside + passed
        if _listeners:
            now = time.time()
            ledger.spans.append((self._name, now - passed, now))


def sizes_of(references: Sequence[Ref]) -> list[int]:
    """Return the bytes of objects as far as this process knows them; 0 for what is not there yet."""
    try:
        known = get_local_object_locations(list(references))
    except (ValueError, RuntimeError):  # none of them is known here
        return [0] * len(references)
    return [int(known.get(reference, {}).get("object_size") or 0) for reference in references]


_listeners: list[Callable[[CallLedger], None]] = []


@contextmanager
def listening(listener: Callable[[CallLedger], None]) -> Iterator[None]:
    """Hear of every call of this process that ends in a block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:  # noqa: PLR2004  binary units
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
