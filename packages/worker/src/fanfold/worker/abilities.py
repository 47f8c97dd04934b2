"""What a backend can do beyond the contract. Each is one method; without it, exactly what is said here is lost.

Where every call asks, it looks for the method alone: asking a protocol costs as much as planning the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.worker.backend import Handle, Outcome, Request, StartedRank, StartOrder
    from fanfold.worker.calls import Call
    from fanfold.worker.limits import Deadline
    from fanfold.worker.stuck import RankStatus


@runtime_checkable
class CallsTogether(Protocol):
    """Takes the requests of one call at once; without it they go one by one."""

    def call_all(self, ranks: Sequence[StartedRank], requests: Sequence[Request]) -> Sequence[Handle]:
        """Submit one request to each rank and return without waiting."""
        ...


@runtime_checkable
class Notifies(Protocol):
    """Says when a call has finished; without it, `await` looks again and again."""

    def on_finished(self, handle: Handle, callback: Callable[[], Any]) -> None:
        """Have a callback called once, on any thread, when the call has finished; at once if it has."""
        ...


@runtime_checkable
class Cancels(Protocol):
    """Drops calls that have not begun; without it, cancelling only discards results."""

    def cancel(self, handles: Sequence[Handle], limit: float) -> Sequence[str]:
        """Drop or flag calls; say for each "dropped", "running" or "finished" within `limit` seconds."""
        ...


@runtime_checkable
class Watches(Protocol):
    """Knows which ranks are gone; without it, a lost rank is noticed by the call that meets it."""

    def lost(self, ranks: Sequence[StartedRank]) -> Mapping[int, Exception]:
        """Return, by rank, what is known about those that are gone. One question for all ranks; never waits long."""
        ...


@runtime_checkable
class Asks(Protocol):
    """Looks into ranks while they work; without it, `why_stuck()` knows only what the driver knows."""

    def ask(self, ranks: Sequence[StartedRank], limit: float) -> Mapping[int, RankStatus]:
        """Ask all ranks where they are and return what has come after `limit` seconds, with a note for the others."""
        ...


@runtime_checkable
class Renews(Protocol):
    """Replaces ranks; without it, `recover()` is refused."""

    def renew(self, order: StartOrder, ranks: Sequence[StartedRank], deadline: Deadline) -> Sequence[StartedRank]:
        """Kill these ranks and start them anew in their places, under their names, with the same rank environment."""
        ...


@runtime_checkable
class PlacesTogether(Protocol):
    """Takes all distinct arguments of one call at once; without it they go through `place` one by one."""

    def place_all(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return what `place` would return for each."""
        ...


@runtime_checkable
class FetchesTogether(Protocol):
    """Brings the outcomes of several finished calls at once; without it they go through `fetch` one by one."""

    def fetch_all(self, handles: Sequence[Handle]) -> Sequence[Outcome]:
        """Return what `fetch` would return for each."""
        ...


@runtime_checkable
class Travels(Protocol):
    """Can be reached from another process; without it, a group does not pickle."""

    def ticket(self, ranks: Sequence[StartedRank]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return a function and arguments that, in another process, give this backend and its ranks as a pair."""
        ...


@runtime_checkable
class Keeps(Protocol):
    """Leaves batches where they are until somebody wants their rows; without it, they all come to the driver.

    Attributes:
        kept_call: The type of a call whose results stay with the ranks (`Request.stays`). Its `promised()` returns a
            store, the parts in it, and a function that brings the whole result within a number of seconds.
    """

    kept_call: type[Call]

    def passed_on(self, value: Any, deadline: Deadline) -> Any | None:
        """Return what to place instead of a value whose rows this backend keeps, without bringing them; else None.

        What `place` makes of it may say in `calls` which calls produce those rows: if one fails, that is the error.
        """
        ...
