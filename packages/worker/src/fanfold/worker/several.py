"""Several calls at once, of any groups: wait for some, gather all; and what else stands for a result to come."""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from fanfold.worker.calls import LOOK_AGAIN, Call
from fanfold.worker.errors import GroupUsageError
from fanfold.worker.limits import Deadline, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")


def gather(*calls: Any, timeout: float | None = None) -> list[Any]:
    """Wait for calls of any groups and return their results in order; the first failure is raised at once.

    Args:
        calls: Calls, or lists of calls; also what else stands for a result that is not here yet, such as a
            `DataProtoFuture`, which is waited for after the calls.
        timeout: Seconds to wait at most; the calls' own limits unless given.

    Raises:
        GroupCallError: One of the calls failed; the others go on.
        WaitTimeoutError: Not all were over in time.
        GroupUsageError: Something else was given.
    """
    flat = [one for item in calls for one in ([item] if stands_for_result(item) else _several("gather", item))]
    limit = None if timeout is None else seconds(timeout, "timeout", may_be_zero=True)
    deadline = None if limit is None else Deadline(limit, f"{len(flat)} calls")
    waiting = [one for one in flat if call_behind(one) is not None]
    while waiting:
        done, waiting = wait(waiting, timeout=None if deadline is None else deadline.left())
        for one in done:
            one.result()
        if waiting and deadline is not None:
            deadline.check(missing=", ".join(call.label for call in map(call_behind, waiting) if call is not None))
    return [
        one.result() if deadline is None or call_behind(one) is not None else one.result(deadline.left())
        for one in flat
    ]


def wait(calls: Iterable[T], count: int = 1, timeout: float | None = None) -> tuple[list[T], list[T]]:
    """Wait until that many calls are done (have a result, an error, or no time left), and return those and the others.

    Args:
        calls: Calls of any groups, or what methods gave for them, such as a `DataProtoFuture`.
        count: How many to wait for; all of them if there are fewer.
        timeout: Seconds to wait at most; the calls' own limits unless given.

    Raises:
        GroupUsageError: Something else was given.
    """
    waiting, done = _with_calls(calls), list[tuple[T, Call]]()
    number: object = count
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise GroupUsageError(f"count is how many calls to wait for, 0 or more; got {count!r}")
    longest = max((call.deadline.left() for _, call in waiting), default=0.0)
    limit = longest if timeout is None else seconds(timeout, "timeout", may_be_zero=True)
    deadline, wanted = Deadline(limit, "calls"), min(count, len(waiting))
    while True:
        answered = [call.done() for _, call in waiting]
        done += [pair for pair, is_done in zip(waiting, answered, strict=True) if is_done]
        waiting = [pair for pair, is_done in zip(waiting, answered, strict=True) if not is_done]
        if len(done) >= wanted or deadline.passed():
            return [given for given, _ in done], [given for given, _ in waiting]
        _wait_for_news([call for _, call in waiting], deadline.left())


_behind: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()


def note_behind(value: Any, call: Call) -> Any:
    """Know that a value stands for the result of a call, and return it."""
    with contextlib.suppress(TypeError):  # of a class that cannot be referred to weakly: it is still what it is
        _behind[value] = call
    return value


def call_behind(value: Any) -> Call | None:
    """Return the call whose result a value stands for: itself, or the one that gave it; None where nobody knows."""
    if isinstance(value, Call):
        return value
    try:
        return _behind.get(value)
    except TypeError:  # cannot be a key
        return None


def stands_for_result(value: Any) -> bool:
    """Say whether a value is a call, or of another library's class, that stands for a result that is not here yet."""
    kind = type(value)
    return callable(getattr(kind, "result", None)) and callable(getattr(kind, "get", None))


def _several(what: str, given: Any) -> list[Any]:
    calls = list(given) if hasattr(type(given), "__iter__") else [given]
    wrong = [one for one in calls if not stands_for_result(one)]
    if wrong:
        raise GroupUsageError(f"{what} takes calls, as methods with blocking=False return them; got {wrong[0]!r}")
    return calls


def _with_calls(given: Iterable[T]) -> list[tuple[T, Call]]:
    if isinstance(given, Call):
        raise GroupUsageError(f"wait takes several calls; say wait([call]), or call.result(), for {given.label}")
    pairs = [(one, call_behind(one)) for one in _several("wait", given)]
    unknown = [one for one, call in pairs if call is None]
    if unknown:
        raise GroupUsageError(
            f"wait takes calls; got {unknown[0]!r}, which cannot say whether it is done: use gather, or its result()"
        )
    return [(one, call) for one, call in pairs if call is not None]


def _wait_for_news(calls: Sequence[Call], limit: float) -> None:
    limit = min([limit, *(call.deadline.left() for call in calls)])
    backends = {id(call._backend): call._backend for call in calls}  # noqa: SLF001  # calls and this belong together
    if len(backends) > 1:
        time.sleep(min(limit, LOOK_AGAIN))
        return
    for backend in backends.values():
        backend.wait([call[p] for call in calls for p in call._pending], limit)  # noqa: SLF001  # as above
