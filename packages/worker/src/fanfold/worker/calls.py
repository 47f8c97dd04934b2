"""A call in progress: the handles of its ranks, and how they become one result or one error."""

from __future__ import annotations

import contextlib
import importlib
import time
from typing import TYPE_CHECKING, Any, Protocol

from fanfold.worker.abilities import Cancels, Notifies
from fanfold.worker.backend import Backend, Failure, Handle, Outcome, StartedRank, Success
from fanfold.worker.errors import CallCancelledError, WaitTimeoutError
from fanfold.worker.limits import CANCEL_LIMIT, GRACE, Deadline, seconds
from fanfold.worker.report import RankFailure, group_call_error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from fanfold.dispatch import CallPlan

LOOK_AGAIN = 0.01  # seconds between looks of an awaiting task at a backend that does not notify


class CallOwner(Protocol):
    """What a call tells the group that made it."""

    warn_after: float | None

    def note_ended(self, call: Call) -> None:
        """Know that a call has ended although ranks are still inside it, or because ranks are gone."""

    def warn_slow(self, label: str, seconds: float) -> None:
        """Report where the ranks are: a call takes long."""


class Call(list[Handle]):
    """A call that was submitted and not waited for: the handles of the ranks it runs on, in rank order.

    On Ray these are ObjectRefs, so `ray.get(call)`, slices and sums of calls work as with plain lists. A call is waited
    for with `result()` or `await`, and can be an argument of the next call of any group.
    """

    def __init__(  # noqa: PLR0913  # called by keyword, once
        self,
        *,
        handles: Iterable[Handle],
        members: Sequence[StartedRank],
        backend: Backend,
        plan: CallPlan,
        label: str,
        deadline: Deadline,
        owner: CallOwner | None = None,
        after: Iterable[Call] = (),
    ) -> None:
        super().__init__(handles)
        self.deadline = deadline
        self.label = label
        self._members = tuple(members)
        self._backend = backend
        self._plan = plan
        self._owner = owner
        self._after = [call for call in after if call.inside() or call.failed()]
        self._outcomes: dict[int, Outcome] = {}
        self._pending: list[int] = list(range(len(self)))  # positions; replaced, never changed
        self._failed_after: dict[int, float] = {}
        self._submitted = time.monotonic()
        self._grace: Deadline | None = None
        self._cancelled = False
        self._value: tuple[Any] | None = None
        self._warn_at = owner.warn_after if owner is not None else None

    @property
    def plan(self) -> CallPlan:
        """Which rank was given what, and how results are collected; without the arguments when the call is over."""
        return self._plan

    def done(self) -> bool:
        """Say whether `result()` would answer at once; never waits."""
        self._take_finished(0.0)
        return not self._pending or bool(self._failed_after) or self._cancelled or self.deadline.passed()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for all ranks and return what they collect to; a second call returns the same.

        Args:
            timeout: Seconds to wait now. Running out does not end the call: ask again.

        Raises:
            GroupCallError: A rank failed; it is an instance of what that rank raised too.
            WaitTimeoutError: The wait, or the call's own limit, ran out; the ranks still running are named.
            CallCancelledError: The call was cancelled before it had finished.
        """
        deadline = self._sooner(timeout)
        if not self._patience(deadline):  # no time is left: what has finished by now counts all the same
            self._take_finished(0.0)
        while (patience := self._patience(deadline)) is not None:
            self._take_finished(patience)
        return self._settle(deadline)

    get = result

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result_in_loop().__await__()

    async def _result_in_loop(self) -> Any:
        asyncio = importlib.import_module("asyncio")  # at first use: a fifth of this package's import budget
        news = asyncio.Event()
        looks_alone = self._wake_on_news(asyncio.get_running_loop(), news)
        self._take_finished(0.0)
        while (patience := self._patience(self.deadline)) is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(news.wait(), min(patience, LOOK_AGAIN) if looks_alone else patience)
            news.clear()
            self._take_finished(0.0)
        return self._settle(self.deadline)

    def _wake_on_news(self, loop: Any, news: Any) -> bool:
        if not isinstance(self._backend, Notifies):
            return True

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed long before a rank finishes
                loop.call_soon_threadsafe(news.set)

        for position in self._pending:
            self._backend.on_finished(self[position], wake)
        return False

    def as_they_come(self, timeout: float | None = None) -> Iterator[tuple[int, Any]]:
        """Yield rank and value of each collected rank as soon as it has finished; raises as `result` does."""
        deadline, given = self._sooner(timeout), set[int]()
        while True:
            for rank, value in self.so_far().items():
                if rank not in given:
                    given.add(rank)
                    yield rank, value
            patience = self._patience(deadline)
            if patience is None:
                break
            self._take_finished(patience)
        self._settle(deadline)

    def so_far(self) -> dict[int, Any]:
        """Return, by rank, the values of collected ranks that are here already; never waits."""
        self._take_finished(0.0)
        results = self._results()
        return {rank: results[rank] for rank in self._plan.collected if rank in results}

    def cancel(self) -> dict[int, str]:
        """Give up on the call; its result is discarded from now on.

        Returns:
            By rank what that meant there: "dropped" (it had not begun and never will), "running" (it goes on, and
            `self.cancelled()` tells the method that nobody waits), or "finished" (it was too late).
        """
        self._take_finished(0.0)
        pending = self._pending
        found = dict.fromkeys(range(len(self)), "finished")
        found.update(dict.fromkeys(pending, "running"))
        if pending and not self._failed_after:
            self._cancelled = True
            if isinstance(self._backend, Cancels):
                found.update(zip(pending, self._backend.cancel([self[p] for p in pending], CANCEL_LIMIT), strict=True))
            self._take_finished(0.0)
            self._end()
        return {self._members[position].rank: what for position, what in found.items()}

    def inside(self) -> list[StartedRank]:
        """Return the ranks that are still running it; never waits."""
        self._take_finished(0.0)
        return [self._members[position] for position in self._pending]

    def failed(self) -> bool:
        """Say whether a rank has failed in it; never waits."""
        self._take_finished(0.0)
        return bool(self._failed_after)

    def age(self) -> float:
        """Return the seconds since it was submitted."""
        return time.monotonic() - self._submitted

    def lost(self) -> list[StartedRank]:
        """Return the ranks that were lost in it."""
        outcomes = sorted(self._outcomes.items())
        return [
            self._members[position] for position, outcome in outcomes if isinstance(outcome, Failure) and outcome.lost
        ]

    # A call is one thing that happened, not its handles: so it can be a key, as `asyncio.gather(call, ...)` needs.
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def __reduce__(self) -> Any:
        return list, (list(self),)

    def _sooner(self, timeout: float | None) -> Deadline:
        if timeout is None or seconds(timeout, "timeout", may_be_zero=True) >= self.deadline.left():
            return self.deadline
        return Deadline(timeout, self.deadline.what)

    def _patience(self, deadline: Deadline) -> float | None:
        if not self._pending or self._cancelled:
            return None
        if self._failed_after:
            self._grace = self._grace or Deadline(GRACE, "other ranks' errors")
            return self._grace.left() or None
        if self._warn_at is not None and self.age() >= self._warn_at and self._owner is not None:
            self._owner.warn_slow(self.label, self.age())
            self._warn_at *= 2
        left = deadline.left()
        return (left if self._warn_at is None else min(left, max(self._warn_at - self.age(), 0.001))) if left else None

    def _settle(self, deadline: Deadline) -> Any:
        if self._value is not None:
            return self._value[0]
        if self._cancelled:
            raise CallCancelledError(
                f"{self.label} was cancelled {self.age():.1f} s after it was submitted or earlier; it has no result"
            )
        if self._failed_after:
            self._end()
            raise self._error()
        if self._pending:
            raise self._timed_out(deadline)
        self._value = (self._plan.collect(self._brought(deadline)),)
        return self._value[0]

    def _brought(self, _: Deadline) -> dict[int, Any]:
        """The results by rank; results that stay with the ranks are brought now, within that time."""
        return self._results()

    def _timed_out(self, deadline: Deadline) -> WaitTimeoutError:
        if deadline is self.deadline:
            self._end()
        names = [f"{self._members[p].name} on node {self._members[p].node}" for p in self._pending]
        return WaitTimeoutError(deadline.what, deadline.seconds, missing=", ".join(names))

    def _end(self) -> None:
        # From here on the ranks may hold this call, and it must not hold the group whose end would end the ranks.
        owner, self._owner = self._owner, None
        self._let_arguments_go()
        if owner is not None:
            owner.note_ended(self)

    def _let_arguments_go(self) -> None:
        # They may be results of other calls: who holds the last call of a chain would hold the memory of all of it.
        self._plan = self._plan.without_sources()

    def _take_finished(self, limit: float) -> None:
        pending = self._pending
        if not pending:
            return
        finished = self._backend.wait([self[position] for position in pending], limit)
        self._take([pending[index] for index in sorted(finished)])
        if finished:
            self._pending = [position for position in pending if position not in self._outcomes]
            if not self._pending:
                self._let_arguments_go()
            if not self._pending and not self._failed_after:
                self._after = []  # what this depended on, and may go now

    def _take(self, positions: Sequence[int]) -> None:
        for position, outcome in zip(positions, self._fetched([self[position] for position in positions]), strict=True):
            self._outcomes[position] = outcome
            if isinstance(outcome, Failure) and not self._cancelled:
                self._failed_after[position] = self.age()

    def _fetched(self, handles: Sequence[Handle]) -> Iterable[Outcome]:
        together: Callable[[Sequence[Handle]], Iterable[Outcome]] | None = getattr(self._backend, "fetch_all", None)
        return map(self._backend.fetch, handles) if together is None or len(handles) == 1 else together(handles)

    def _results(self) -> dict[int, Any]:
        return {
            self._members[position].rank: outcome.value
            for position, outcome in sorted(self._outcomes.items())
            if isinstance(outcome, Success)
        }

    def _error(self) -> BaseException:
        for call in self._after:  # its ranks failed because what they were to read has failed: that is what to say
            if call.failed():
                try:
                    call.result()
                except Exception as error:  # noqa: BLE001  # whatever it is, it is the error of this call too
                    return error
        failures = [self._failure(position, seconds) for position, seconds in self._failed_after.items()]
        unfinished = [self._members[position].rank for position in self._pending]
        return group_call_error(self.label, failures, self._results(), unfinished)

    def _failure(self, position: int, seconds: float) -> RankFailure:
        member, outcome = self._members[position], self._outcomes[position]
        assert isinstance(outcome, Failure)  # only failures are in _failed_after
        return RankFailure(
            rank=member.rank,
            worker=member.name,
            node=member.node,
            pid=member.pid,
            method=self.label,
            seconds=seconds,
            error=outcome.error,
            trace=outcome.trace,
            when=outcome.when,
            lost=outcome.lost,
        )
