"""What can go wrong with groups of ranks. Every class is also the built-in that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanfold.dispatch import FanfoldError

if TYPE_CHECKING:
    from collections.abc import Sequence


class WorkerError(FanfoldError):
    """Root of everything `fanfold.worker` raises by itself."""


class PoolError(WorkerError, ValueError):
    """A resource pool that cannot be, or cannot be divided or joined as asked."""


class RankEnvironmentError(WorkerError, ValueError):
    """The rank environment is missing, contradicts itself, or was about to be overwritten."""


class GroupUsageError(WorkerError, ValueError):
    """A group was made or called in a way that cannot work."""


class RecipeError(GroupUsageError, TypeError):
    """A class that cannot be a worker, or constructor arguments that it does not take."""


class UnknownOptionError(WorkerError, TypeError):
    """A keyword that a constructor or call does not have, most often misspelt."""


class UnknownMethodError(WorkerError, AttributeError):
    """A group was asked for a method its worker class does not register."""


class MethodNameClashError(WorkerError, TypeError):
    """A registered method has the name of an attribute that the group itself needs."""


class NotPicklableError(WorkerError, TypeError):
    """An argument, a result or a class cannot cross to another rank."""


class ReadOnlyError(WorkerError, ValueError):
    """A method wrote into an argument that it had promised only to read."""


class WaitTimeoutError(WorkerError, TimeoutError):
    """A wait passed its limit.

    Attributes:
        what: What was waited for.
        seconds: The limit.
        missing: What had not come by then.
    """

    def __init__(self, what: str, seconds: float, missing: str = "") -> None:
        self.what = what
        self.seconds = seconds
        self.missing = missing
        super().__init__(what, seconds, missing)

    def __str__(self) -> str:
        still = f"; still missing: {self.missing}" if self.missing else ""
        return f"{self.what} was not over within {self.seconds:g} s{still}"


class BusyRankError(WaitTimeoutError):
    """Ranks are still inside an earlier call that failed, timed out or was cancelled."""


class WorkerStartError(WorkerError, RuntimeError):
    """A rank could not build its worker; the rank's own error is the cause."""


class WorkerLostError(WorkerError, RuntimeError):
    """A rank is gone: its process ended, was killed, or cannot be reached.

    Attributes:
        exit_status: What its process ended with, if it did by itself and this is known.
        signal_name: The signal that ended it, such as "SIGKILL", if one did.
        log: The last lines of its output.
        ranks: Which ranks, where it is a report about several.
    """

    ranks: tuple[int, ...] = ()

    def __init__(
        self, message: str, *, exit_status: int | None = None, signal_name: str = "", log: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.signal_name = signal_name
        self.log = tuple(log)

    def __str__(self) -> str:
        last = "; the last of its output:\n" + "\n".join(f"  {line}" for line in self.log)
        return str(self.args[0]) + (last if self.log else "")


class CallCancelledError(WorkerError, RuntimeError):
    """The result of a call that was cancelled was asked for."""


class RemoteError(WorkerError, RuntimeError):
    """An error of a rank whose class cannot travel, or is unknown here.

    Attributes:
        class_name: Module and name of the class it had on its rank.
        text: What it said there.
    """

    def __init__(self, class_name: str, text: str) -> None:
        self.class_name = class_name
        self.text = text
        super().__init__(class_name, text)

    def __str__(self) -> str:
        return f"{self.class_name}: {self.text}"
