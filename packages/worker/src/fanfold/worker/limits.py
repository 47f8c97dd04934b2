"""Deadlines: every wait has one, and says what it waits for."""

from __future__ import annotations

import time
from typing import Any

from fanfold.worker.errors import GroupUsageError, WaitTimeoutError

START_LIMIT = 300.0  # seconds until all ranks of a group have built their workers: a model import alone takes many
CALL_LIMIT = 7200.0  # seconds for one call: longer than a step or a rollout, shorter than a night lost to a hang
STOP_LIMIT = 30.0  # seconds for ending ranks that answer; what does not answer is killed
CANCEL_LIMIT = 2.0  # seconds for ranks to say what cancelling a call meant for them
ASK_LIMIT = 5.0  # seconds for ranks to say where they are
WARN_AFTER = 600.0  # seconds after which a call that is waited for says where its ranks are
GRACE = 0.5  # seconds that other ranks get to report their own errors after the first failure
LONGEST = 1e9  # seconds, some thirty years: more than that says that somebody meant no limit at all


def seconds(value: Any, name: str, *, may_be_zero: bool = False) -> float:
    """Return a number of seconds that a user gave.

    Args:
        value: What was given.
        name: The argument it was given for.
        may_be_zero: Whether 0 makes sense: a look that does not wait.

    Raises:
        GroupUsageError: It is no number, negative, or without an end.
    """
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else float("nan")
    if not (0 <= number <= LONGEST if may_be_zero else 0 < number <= LONGEST):
        least = "0 or more" if may_be_zero else "more than 0"
        raise GroupUsageError(
            f"{name} is a number of seconds, {least} and at most {LONGEST:g} (every wait has a limit); got {value!r}"
        )
    return float(number)


class Deadline:
    """A moment by which a named wait has to be over.

    Attributes:
        seconds: The limit as it was given, in seconds.
        what: What is waited for, as it is named in the error.
    """

    # No dataclass: one is made for each call, and what a frozen one costs is a tenth of a call's budget.
    __slots__ = ("_end", "seconds", "what")

    def __init__(self, seconds: float, what: str) -> None:
        self.seconds = seconds
        self.what = what
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        """Say whether the moment is over."""
        return self.left() == 0.0

    def check(self, missing: str = "") -> None:
        """Raise `WaitTimeoutError` when the moment is over; `missing` says what has not come."""
        if self.passed():
            raise WaitTimeoutError(what=self.what, seconds=self.seconds, missing=missing)
