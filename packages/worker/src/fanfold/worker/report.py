"""The error of a group call: which ranks failed, with what, and which failure came first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.worker.errors import WorkerError


@dataclass(frozen=True)
class RankFailure:
    """How one rank failed.

    Attributes:
        rank: Number of the rank.
        worker: Name of the worker.
        node: Where it runs.
        pid: Its process.
        method: What it was running.
        seconds: How long after the call was submitted the failure was seen.
        error: What it raised, or a `WorkerLostError`.
        trace: The traceback on the rank, as text.
    """

    rank: int
    worker: str
    node: str
    pid: int
    method: str
    seconds: float
    error: BaseException
    trace: str = ""

    def headline(self) -> str:
        """Type and text of the error in one line."""
        return f"{type(self.error).__name__}: {self.error}".splitlines()[0].strip()

    def place(self) -> str:
        """Where it happened."""
        return f"rank {self.rank} ({self.worker}, node {self.node}, pid {self.pid}), {self.seconds:.1f} s into the call"


class GroupCallError(WorkerError, RuntimeError):
    """A call failed on at least one rank.

    What the caller catches is also an instance of the class that the first failing rank raised, so that
    `except KeyError` works. Make it with `group_call_error`.

    Attributes:
        method: The method that was called.
        failures: What failed, the first failure first.
        results: By rank, what finished.
        unfinished: Ranks that had neither finished nor failed when the call ended.
    """

    method: str
    failures: tuple[RankFailure, ...]
    results: dict[int, Any]
    unfinished: tuple[int, ...]

    def by_rank(self) -> dict[int, BaseException]:
        """Return the error of each rank that failed."""
        return {failure.rank: failure.error for failure in self.failures}

    def group(self) -> BaseExceptionGroup:
        """Return all errors as one exception group."""
        return BaseExceptionGroup(f"{self.method} failed", [failure.error for failure in self.failures])

    def __str__(self) -> str:
        return render(self.method, self.failures, sorted(self.results), self.unfinished)

    def __reduce__(self) -> tuple[Any, ...]:
        return group_call_error, (self.method, self.failures, self.results, self.unfinished)


def group_call_error(
    method: str, failures: Sequence[RankFailure], results: dict[int, Any], unfinished: Sequence[int] = ()
) -> GroupCallError:
    """Make the error of a call, as an instance of the first failure's class too where Python allows that."""
    cause = failures[0].error
    error = _empty_error(type(cause))
    error.__dict__.update(getattr(cause, "__dict__", {}))
    error.method, error.failures, error.results = method, tuple(failures), results
    error.unfinished = tuple(unfinished)
    error.args = cause.args
    error.__cause__ = cause
    return error


def _empty_error(cause: type[BaseException]) -> GroupCallError:
    if issubclass(cause, GroupCallError):
        return GroupCallError()
    try:
        both = type("GroupCallError", (GroupCallError, cause), {"__module__": __name__})
        return both.__new__(both)
    except TypeError:  # classes whose instances are laid out differently, and classes that refuse to be derived from
        return GroupCallError()


def render(method: str, failures: Sequence[RankFailure], finished: Sequence[int], unfinished: Sequence[int]) -> str:
    """Write the report: like errors folded, the first failure with its place and traceback last, where eyes are."""
    first = failures[0]
    lines = [f"{method} failed on {_ranks(failure.rank for failure in failures)}"]
    lines += [f"  {_ranks(ranks)}: {headline}" for headline, ranks in _folded(failures).items()]
    lines += [f"  {_ranks(finished)}: finished"] if finished else []
    lines += [f"  {_ranks(unfinished)}: still running when the call ended"] if unfinished else []
    lines.append(f"first failure: {first.place()}")
    return "\n".join([*lines, first.trace.rstrip() or first.headline()])


def _folded(failures: Sequence[RankFailure]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for failure in failures:
        ranks.setdefault(failure.headline(), []).append(failure.rank)
    return ranks


def _ranks(ranks: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{'rank' if text.isdigit() else 'ranks'} {text}"
