"""A call in progress: the handles of its ranks, and how they become one result or one error."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from fanfold.dispatch import CallPlan
from fanfold.worker.backend import Backend, Failure, Handle, Outcome, StartedRank, Success
from fanfold.worker.errors import WaitTimeoutError
from fanfold.worker.limits import Deadline
from fanfold.worker.report import RankFailure, group_call_error

GRACE = 1.0  # seconds that other ranks get to report their own errors after the first failure


class Call(list[Handle]):
    """A call that was submitted and not waited for: the handles of the ranks it runs on, in rank order.

    On Ray these are ObjectRefs, so `ray.get(call)`, slices and sums of calls work as with plain lists.
    """

    def __init__(
        self,
        *,
        handles: Iterable[Handle],
        members: Sequence[StartedRank],
        backend: Backend,
        plan: CallPlan,
        label: str,
        deadline: Deadline,
    ) -> None:
        super().__init__(handles)
        self._members = tuple(members)
        self._backend = backend
        self._label = label
        self._deadline = deadline
        self._plan = plan
        self._outcomes: dict[int, Outcome] = {}
        self._submitted = time.monotonic()
        self._failed_after: dict[int, float] = {}

    @property
    def plan(self) -> CallPlan:
        """Which rank was given what, and how results are collected."""
        return self._plan

    def done(self) -> bool:
        """Say whether every rank has finished or failed; never waits."""
        self._take_finished(0.0)
        return not self._pending()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for all ranks and return what they collect to; a second call returns the same.

        Args:
            timeout: Seconds to wait now. Running out does not end the call: ask again.

        Raises:
            GroupCallError: A rank failed; it is an instance of what that rank raised too.
            WaitTimeoutError: The wait, or the call's own limit, ran out; the ranks still running are named.
        """
        deadline = self._deadline if timeout is None else self._sooner(Deadline(timeout, self._deadline.what))
        while self._pending() and not self._failures():
            self._take_finished(deadline.left())
            self._check(deadline)
        if self._failures():
            self._gather_other_failures()
            raise self._error()
        return self._plan.collect(self._results())

    get = result

    def _check(self, deadline: Deadline) -> None:
        if deadline.passed() and self._pending() and not self._failures():
            names = ", ".join(f"{self._members[i].name} on node {self._members[i].node}" for i in self._pending())
            raise WaitTimeoutError(deadline.what, deadline.seconds, missing=names)

    def _sooner(self, other: Deadline) -> Deadline:
        return min(other, self._deadline, key=Deadline.left)

    def _pending(self) -> list[int]:
        return [position for position in range(len(self)) if position not in self._outcomes]

    def _take_finished(self, limit: float) -> None:
        pending = self._pending()
        if not pending:
            return
        for index in sorted(self._backend.wait([self[position] for position in pending], limit)):
            self._take(pending[index])

    def _take(self, position: int) -> None:
        outcome = self._backend.fetch(self[position])
        self._outcomes[position] = outcome
        if isinstance(outcome, Failure):
            self._failed_after[position] = time.monotonic() - self._submitted

    def _gather_other_failures(self) -> None:
        grace = Deadline(GRACE, "other ranks' errors")
        while self._pending() and not grace.passed():
            self._take_finished(grace.left())

    def _failures(self) -> list[int]:
        return list(self._failed_after)

    def _results(self) -> dict[int, Any]:
        return {
            self._members[position].rank: outcome.value
            for position, outcome in sorted(self._outcomes.items())
            if isinstance(outcome, Success)
        }

    def _error(self) -> BaseException:
        failures = [self._failure(position) for position in self._failed_after]
        unfinished = [self._members[position].rank for position in self._pending()]
        return group_call_error(self._label, failures, self._results(), unfinished)

    def _failure(self, position: int) -> RankFailure:
        member, outcome = self._members[position], self._outcomes[position]
        assert isinstance(outcome, Failure)  # noqa: S101  # only failures are in _failed_after
        return RankFailure(
            rank=member.rank,
            worker=member.name,
            node=member.node,
            pid=member.pid,
            method=self._label,
            seconds=self._failed_after[position],
            error=outcome.error,
            trace=outcome.trace,
        )
