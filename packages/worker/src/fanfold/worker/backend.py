"""The whole contract of a backend: start ranks, attach to ranks, place values, call, wait, fetch, stop.

A backend decides nothing about batches, ranks or results: it is handed a finished `StartOrder` and finished `Request`s.
What it returns from `call` is its own reference to a result, a *Handle* (on Ray an ObjectRef), which nobody else opens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.dispatch import CallContext
    from fanfold.worker.limits import Deadline
    from fanfold.worker.pool import Slot
    from fanfold.worker.recipe import ClassWithInitArgs

Handle: TypeAlias = Any  # each backend has its own type, and only the backend looks inside


class StartOrder(NamedTuple):
    """What is to be started: one worker in each slot, under the name that stands beside it.

    Attributes:
        group: Name of the group, the prefix of every worker's name.
        recipe: The user's class and the arguments of its constructor.
        slots: W places, in the order of ranks.
        names: W worker names, in the order of ranks.
        environment: What the user wants in `os.environ` before the class is imported.
    """

    group: str
    recipe: ClassWithInitArgs
    slots: Sequence[Slot]
    names: Sequence[str]
    environment: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class StartedRank:
    """A rank that runs, as the driver sees it; `door` is the backend's own way to reach it."""

    rank: int
    name: str
    node: str
    pid: int
    door: Any = field(repr=False, compare=False)


class Request(NamedTuple):
    """One call on one rank: a method of the worker by name, or a function that is given the worker first.

    Every argument went through `Backend.place`; the worker sees the value that was placed. A rank whose result is not
    `wanted` runs the method and returns None, so that only what is collected travels. A `readonly` request promises not
    to write into its arguments: they may be shared memory. A result that `stays` is not brought by the caller: see
    `abilities.Keeps`; the columns that are named in `apart` are then kept each by itself.
    """

    method: str | Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    context: CallContext
    wanted: bool = True
    readonly: bool = False
    stays: bool = False
    apart: Sequence[str] = ()

    @property
    def label(self) -> str:
        """The method's name for people."""
        return self.method if isinstance(self.method, str) else getattr(self.method, "__name__", repr(self.method))


class Success(NamedTuple):
    """The value a method returned."""

    value: Any


class Failure(NamedTuple):
    """What a method raised on its rank, or that the rank is gone (`lost`).

    `trace` is the traceback as text, as it looked on the rank; empty where there is none. `when` is the moment by
    `time.time()` on the rank; 0 where it is not known.
    """

    error: BaseException
    trace: str = ""
    lost: bool = False
    when: float = 0.0


Outcome: TypeAlias = Success | Failure


class Backend(Protocol):
    """What starts ranks and carries calls to them. Every wait ends with its `Deadline` or its limit in seconds."""

    name: str

    def start(self, order: StartOrder, deadline: Deadline) -> Sequence[StartedRank]:
        """Start all ranks at once and return them in rank order when each has built its worker.

        The rank environment is set before the user's class is imported. Raises the first rank's own error as a
        `WorkerStartError`, and leaves nothing running then.
        """
        ...

    def place(self, value: Any) -> Any:
        """Put a value where ranks can read it, once, and return what stands for it in a `Request`."""
        ...

    def call(self, rank: StartedRank, request: Request) -> Handle:
        """Submit a call and return without waiting for it."""
        ...

    def wait(self, handles: Sequence[Handle], limit: float) -> set[int]:
        """Return the positions of finished calls as soon as there is one, or an empty set after `limit` seconds."""
        ...

    def fetch(self, handle: Handle) -> Outcome:
        """Bring the outcome of a finished call."""
        ...

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:
        """End ranks, rank 0 last, and return within about `limit` seconds; ranks that are gone already are no error."""
        ...
