"""The error of a group call: which ranks failed, with what, and which failure came first."""

from __future__ import annotations

import contextlib
import re
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from fanfold.worker.errors import WorkerError, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class RankFailure(NamedTuple):
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
        when: The moment on the rank's own clock; 0 where it is not known.
        lost: Whether the rank is gone.
    """

    rank: int
    worker: str
    node: str
    pid: int
    method: str
    seconds: float
    error: BaseException
    trace: str = ""
    when: float = 0.0
    lost: bool = False

    def headline(self) -> str:
        """Type and text of the error in one line."""
        text = self.error.args[0] if isinstance(self.error, WorkerLostError) else self.error
        return f"{type(self.error).__name__}: {text}".splitlines()[0].strip()

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
    """Make the error of a call, as an instance of the first cause's class too where Python allows that."""
    ordered = causes_first(failures)
    cause = ordered[0].error
    error = _empty_error(cause)
    error.__dict__.update(getattr(cause, "__dict__", {}))
    error.method, error.failures, error.results = method, tuple(ordered), results
    error.unfinished = tuple(unfinished)
    error.args = cause.args
    error.__cause__ = cause
    return error


def causes_first(failures: Sequence[RankFailure]) -> list[RankFailure]:
    """Order failures: those that can be a cause before those that only tell of another rank's end, each by time.

    The moment on the rank's own clock counts where all ranks gave one and are on one node; else when the driver saw it.
    """
    one_clock = all(failure.when for failure in failures) and len({failure.node for failure in failures}) == 1
    return sorted(failures, key=lambda failure: (is_victim(failure), failure.when if one_clock else failure.seconds))


def is_victim(failure: RankFailure) -> bool:
    """Say whether an error only tells that another rank is gone or late, as collectives do when a peer fails."""
    if failure.lost:
        return False
    text = str(failure.error)
    return isinstance(failure.error, (ConnectionError, EOFError)) or any(sign in text for sign in _SIGNS_OF_A_VICTIM)


# What gloo, NCCL and torch's store say on the ranks that are left.
_SIGNS_OF_A_VICTIM = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket Timeout",
    "Timed out waiting",
    "remote process exited",
    "NCCL communicator was aborted",
    "Watchdog caught collective operation timeout",
)


def _empty_error(cause: BaseException) -> GroupCallError:
    is_call = isinstance(cause, GroupCallError)  # a worker drives a group of its own
    try:
        both = (
            type(cause) if is_call else type("GroupCallError", (GroupCallError, type(cause)), {"__module__": __name__})
        )
        error = _made(both, cause)
    except Exception:  # noqa: BLE001  # laid out differently, not made to be derived from, or asking for other arguments
        return GroupCallError()
    _copy_slots(cause, error)
    return error


def _made(both: type, cause: BaseException) -> GroupCallError:
    # Built-in classes have one safe way to make an instance, and which one it is depends on both bases.
    try:
        error: GroupCallError = type(cause).__new__(both, *cause.args)
    except TypeError:
        error = both.__new__(both, *cause.args)
    return error


def _copy_slots(cause: BaseException, error: BaseException) -> None:
    # What built-in exceptions keep beside their arguments: errno, filename, name, path, value, code, start, end, ...
    kinds = (types.MemberDescriptorType, types.GetSetDescriptorType)
    for cls in type(cause).__mro__[:-2]:
        for name, attribute in vars(cls).items():
            if isinstance(attribute, kinds) and not name.startswith("_") and name != "args":
                with contextlib.suppress(AttributeError, TypeError):  # unset, or only readable
                    setattr(error, name, getattr(cause, name))


def render(method: str, failures: Sequence[RankFailure], finished: Sequence[int], unfinished: Sequence[int]) -> str:
    """Write the report: like errors folded, the first cause with its place and traceback last, where eyes are."""
    first = failures[0]
    lines = [f"{method} failed on {_ranks(failure.rank for failure in failures)}"]
    lines += [f"  {_ranks(ranks)}: {text}" for text, ranks in _folded(failures).items()]
    lines += [f"  {_ranks(finished)}: finished"] if finished else []
    lines += [f"  {_ranks(unfinished)}: still running when the call ended"] if unfinished else []
    lines.append(f"first failure: {first.place()}")
    return "\n".join([*lines, first.trace.rstrip() or f"{type(first.error).__name__}: {first.error}"])


def _folded(failures: Sequence[RankFailure]) -> dict[str, list[int]]:
    """Put like errors together: alike but for the numbers in them."""
    groups: dict[str, list[RankFailure]] = {}
    for failure in failures:
        groups.setdefault(_NUMBER.sub("#", failure.headline()), []).append(failure)
    folded = {}
    for alike in groups.values():
        note = " (after another rank failed)" if is_victim(alike[0]) and not is_victim(failures[0]) else ""
        folded[alike[0].headline() + note] = [failure.rank for failure in alike]
    return folded


_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def _ranks(ranks: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{'rank' if text.isdigit() else 'ranks'} {text}"
