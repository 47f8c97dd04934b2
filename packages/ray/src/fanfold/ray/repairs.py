"""What a group does, before its caller hears of it, when a call meets ranks that are gone."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fanfold.ray.durations import seconds_of
from fanfold.worker import START_LIMIT, GroupUsageError, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanfold.ray.ranks import RanksOnCluster

Action: TypeAlias = Literal["raise", "replace", "restart_all"]
Decision: TypeAlias = "Callable[[Any, WorkerLostError], Action | None]"  # its first argument is the RayWorkerGroup

_ACTIONS = ("raise", "replace", "restart_all")


@dataclass(frozen=True)
class FailurePolicy:
    """What becomes of a group whose ranks are gone. The call that met it fails in any case, and says what was done.

    Args:
        action: "raise" leaves the group as it is; "replace" starts the lost ranks anew, which is refused for groups
            with collectives; "restart_all" starts all ranks anew. A function of the group and the report says one of
            these, or None when it has done itself what was to be done.
        limit: After how many repairs the policy is "raise".
        within: Only repairs of the last so many seconds, or "1h", count towards the limit; None: all do.
        timeout: Seconds for one repair.

    Raises:
        GroupUsageError: An argument is none of these.
    """

    action: Action | Decision = "raise"
    limit: int = 3
    within: float | str | None = None
    timeout: float = START_LIMIT

    def __post_init__(self) -> None:
        if not callable(self.action) and self.action not in _ACTIONS:
            raise GroupUsageError(
                f"on_failure is 'raise', 'replace', 'restart_all', a function of the group and the report, or a "
                f"FailurePolicy; got {self.action!r}"
            )
        if self.limit < 1 or not self.timeout > 0:
            raise GroupUsageError(f"limit and timeout of {self!r} have to be positive")
        seconds_of(self.within, "within")

    def exhausted(self, repairs: Sequence[float], now: float) -> bool:
        """Say whether as many repairs as are allowed have been made at these moments."""
        span = seconds_of(self.within, "within")
        return sum(span is None or now - moment <= span for moment in repairs) >= self.limit


def as_policy(on_failure: FailurePolicy | Action | Decision) -> FailurePolicy:
    """Take a policy wherever one is wanted.

    Raises:
        GroupUsageError: It is none.
    """
    return on_failure if isinstance(on_failure, FailurePolicy) else FailurePolicy(on_failure)


class Repairs:
    """The policy of a group and what it has done so far; shared by the group, its parts and its roles."""

    def __init__(self, policy: FailurePolicy) -> None:
        self.policy = policy
        self._made: deque[float] = deque(maxlen=policy.limit)
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[Repairs], tuple[FailurePolicy]]:
        return Repairs, (FailurePolicy(),)  # only the process that started the ranks can start them anew

    def react(self, group: RanksOnCluster[Any], report: WorkerLostError) -> str:
        """Do what the policy says about these lost ranks; return what was done in words, nothing for "raise"."""
        if self.policy.action == "raise":
            return ""
        with self._lock:
            if self.policy.exhausted(self._made, time.monotonic()):
                return f"nothing was started anew: {self.policy.limit} repairs are the limit of its failure policy"
            self._made.append(time.monotonic())
            try:
                return self._act(group, report)
            except Exception as error:  # noqa: BLE001  # told in the report of the lost ranks, which is the first cause
                return f"and its failure policy failed: {type(error).__name__}: {error}"

    def _act(self, group: RanksOnCluster[Any], report: WorkerLostError) -> str:
        action = self.policy.action(group, report) if callable(self.policy.action) else self.policy.action
        if action == "replace":
            return f"started anew: {in_words(group.replace(report.ranks, self.policy.timeout))}"
        if action == "restart_all":
            return f"all ranks were started anew: {in_words(group.restart_all(self.policy.timeout))}"
        if action not in ("raise", None):
            raise GroupUsageError(f"it said {action!r}; known are {', '.join(_ACTIONS)} and None")
        return "" if action == "raise" else "its failure policy has dealt with it"


def in_words(generations: dict[int, int]) -> str:
    """Name ranks and their generations in one line."""
    return ", ".join(f"rank {rank} (generation {generation})" for rank, generation in sorted(generations.items()))
