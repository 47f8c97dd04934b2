"""A backend that fails on purpose, around one that works: for tests of drivers that have to live with failures."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from fanfold.worker.backend import Backend, Failure, Handle, Outcome, Request, StartedRank, StartOrder
from fanfold.worker.errors import GroupUsageError, WorkerLostError
from fanfold.worker.limits import Deadline
from fanfold.worker.stuck import RankStatus
from fanfold.worker.typos import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Kind = Literal["slow", "dies", "loses_reply"]


@dataclass(frozen=True)
class Fault:
    """What goes wrong on one rank.

    Attributes:
        rank: On which rank.
        kind: "slow": each call's reply comes `seconds` later; "dies": the rank is lost in the call and stays lost;
            "loses_reply": the method runs and nobody ever hears of it.
        method: In which method; any unless given.
        after: How many calls of it go well before.
        times: How many calls go wrong then; all unless given. A rank that died stays lost until it is recovered.
        seconds: How late a slow reply is.
    """

    rank: int
    kind: Kind
    method: str = ""
    after: int = 0
    seconds: float = 0.0
    times: int | None = None

    def __post_init__(self) -> None:
        kinds = get_args(Kind)
        if self.kind not in kinds:
            near = nearest([str(self.kind)], kinds)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise GroupUsageError(f"a fault is one of {', '.join(map(repr, kinds))}; got {self.kind!r}{hint}")
        if self.rank < 0 or self.after < 0 or self.seconds < 0:
            raise GroupUsageError(f"rank, after and seconds of a fault are 0 or more; got {self!r}")


@dataclass(eq=False)
class FaultyHandle:
    """A call that may be answered late, wrongly, or never."""

    handle: Handle
    not_before: float = 0.0
    never: bool = False
    outcome: Outcome | None = None


@dataclass
class FaultyBackend:
    """A backend with faults; everything else is the other backend's work.

    Attributes:
        backend: The one that works.
        faults: What goes wrong, in which call.
        shuffle: Report finished calls in an order that this number decides, one at a time; None: as they come.
    """

    backend: Backend
    faults: Sequence[Fault] = ()
    shuffle: int | None = None
    _calls: dict[Fault, int] = field(default_factory=dict)
    _dead: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.name = f"faulty {self.backend.name}"
        self._random = random.Random(self.shuffle)  # noqa: S311  # an order, not a secret
        # What the other backend can do beyond the contract, this one can too; what it cannot, neither.
        for ability, own in {"renew": self._renew, "cancel": self._cancel, "ask": self._ask}.items():
            if hasattr(self.backend, ability):
                setattr(self, ability, own)

    def start(self, order: StartOrder, deadline: Deadline) -> Sequence[StartedRank]:
        """Start the ranks; faults come with calls."""
        return self.backend.start(order, deadline)

    def place(self, value: Any) -> Any:
        """Place a value."""
        return self.backend.place(value)

    def call(self, rank: StartedRank, request: Request) -> FaultyHandle:
        """Submit a call, and decide what becomes of it."""
        fault = self._fault_of(rank.rank, request.label)
        if rank.rank in self._dead or (fault and fault.kind == "dies"):
            self._dead.add(rank.rank)
            error = WorkerLostError(f"rank {rank.rank} ({rank.name}) is gone: made to die", signal_name="SIGKILL")
            return FaultyHandle(None, outcome=Failure(error, lost=True))
        handle = FaultyHandle(self.backend.call(rank, request))
        if fault is not None:
            handle.never = fault.kind == "loses_reply"
            handle.not_before = time.monotonic() + fault.seconds
        return handle

    def _fault_of(self, rank: int, method: str) -> Fault | None:
        for fault in self.faults:
            if fault.rank == rank and fault.method in ("", method):
                self._calls[fault] = self._calls.get(fault, 0) + 1
                wrong = self._calls[fault] - fault.after
                if wrong > 0 and (fault.times is None or wrong <= fault.times):
                    return fault
        return None

    def wait(self, handles: Sequence[FaultyHandle], limit: float) -> set[int]:
        """Return the positions of calls whose reply is here and not held back."""
        deadline = Deadline(limit, "replies")
        while not (finished := self._finished(handles)) and not deadline.passed():
            time.sleep(min(deadline.left(), 0.005))
        if self.shuffle is None or not finished:
            return finished
        return {self._random.choice(sorted(finished))}

    def _finished(self, handles: Sequence[FaultyHandle]) -> set[int]:
        now = time.monotonic()
        here = {p for p, handle in enumerate(handles) if handle.outcome is not None}
        may = [p for p, h in enumerate(handles) if h.outcome is None and not h.never and h.not_before <= now]
        return (
            here | {may[index] for index in self.backend.wait([handles[p].handle for p in may], 0.0)} if may else here
        )

    def fetch(self, handle: FaultyHandle) -> Outcome:
        """Bring the outcome of a finished call."""
        return handle.outcome or self.backend.fetch(handle.handle)

    def _renew(self, order: StartOrder, ranks: Sequence[StartedRank], deadline: Deadline) -> Sequence[StartedRank]:
        renewed: Sequence[StartedRank] = self._able.renew(order, ranks, deadline)
        self._dead -= {rank.rank for rank in renewed}
        return renewed

    def _cancel(self, handles: Sequence[FaultyHandle], limit: float) -> list[str]:
        # A reply that is held back or lost is not here: as far as anybody can see, the method is still running.
        told = self._able.cancel([handle.handle for handle in handles if handle.handle is not None], limit)
        found = iter(["running" if what == "finished" else what for what in told])
        return ["finished" if handle.handle is None else next(found) for handle in handles]

    def _ask(self, ranks: Sequence[StartedRank], limit: float) -> dict[int, RankStatus]:
        living = [rank for rank in ranks if rank.rank not in self._dead]
        dead = {rank: RankStatus(rank, note=f"rank {rank} is gone: made to die") for rank in self._dead}
        return {**self._able.ask(living, limit), **{rank.rank: dead[rank.rank] for rank in ranks if rank.rank in dead}}

    @property
    def _able(self) -> Any:
        return self.backend  # with abilities that the contract does not have

    def lost(self, ranks: Sequence[StartedRank]) -> dict[int, Exception]:
        """Return the ranks that were made to die, and what the other backend knows."""
        find: Callable[..., Any] | None = getattr(self.backend, "lost", None)
        here = {rank.rank for rank in ranks}
        dead = {rank: WorkerLostError(f"rank {rank} is gone: made to die") for rank in sorted(self._dead & here)}
        return {**(find(ranks) if find is not None else {}), **dead}

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:
        """End the ranks."""
        self.backend.stop(ranks, limit)
