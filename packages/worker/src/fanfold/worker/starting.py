"""From what a user says to an order that a backend can start: names, places, environment."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from fanfold.worker.abilities import Renews, Watches
from fanfold.worker.backend import Backend, Failure, StartedRank, StartOrder
from fanfold.worker.errors import GroupUsageError, WaitTimeoutError, WorkerStartError
from fanfold.worker.rank import backend_of_environment, check_worker_environment
from fanfold.worker.ranks import Ranks
from fanfold.worker.worker import overrides_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fanfold.worker.limits import Deadline
    from fanfold.worker.pool import ResourcePool
    from fanfold.worker.recipe import ClassWithInitArgs


def unique_prefix() -> str:
    """Return a name that no other group has; the user's random state is not touched."""
    return f"group-{os.urandom(4).hex()}-"


def start_order(
    pool: ResourcePool, recipe: ClassWithInitArgs, prefix: str, environment: Mapping[str, str]
) -> StartOrder:
    """Say what is to be started: a worker `{prefix}{Class}_{node}:{local rank}` in each slot of the pool."""
    given: object = prefix
    if not isinstance(given, str) or "\0" in given:
        raise GroupUsageError(f"name_prefix is a text, the first part of the workers' names; got {prefix!r}")
    slots = pool.slots()
    if not slots:
        raise GroupUsageError(f"{pool!r} has no processes; a group needs at least one")
    recipe.check(len(slots))
    names = [f"{prefix}{recipe.cls.__name__}_{slot.node_rank}:{slot.local_rank}" for slot in slots]
    return StartOrder(prefix, recipe, slots, names, check_worker_environment(environment))


def as_backend(backend: Backend | str | None) -> Backend:
    """Take the name of a backend wherever one is wanted; without a name, what `FANFOLD_BACKEND` says, else inline.

    Raises:
        GroupUsageError: There is no backend of that name, or what was given is none.
    """
    chosen = backend_of_environment() if backend is None else backend
    if not isinstance(chosen, str):
        return _checked(chosen)
    if chosen not in _BACKENDS:
        where = " (from FANFOLD_BACKEND)" if backend is None else ""
        raise GroupUsageError(
            f"there is no backend {chosen!r}{where}; there are {', '.join(_BACKENDS)}, or give a Backend"
        )
    return _BACKENDS[chosen]()


def _checked(backend: Any) -> Backend:
    if isinstance(backend, type):
        raise GroupUsageError(f"backend={backend.__name__} is a class; give an instance: {backend.__name__}()")
    missing = [name for name in _CONTRACT if not callable(getattr(backend, name, None))]
    if missing:
        raise GroupUsageError(
            f"backend={backend!r} is no backend: it has no {', '.join(missing)}; give a Backend, or one of the names "
            f"{', '.join(_BACKENDS)}"
        )
    return backend  # type: ignore[no-any-return]  # looked at just now


_CONTRACT = ("start", "place", "call", "wait", "fetch", "stop")

# Each is imported at first use: pickling, sockets and subprocesses cost more than all the rest of this package.


def _inline() -> Backend:
    return importlib.import_module("fanfold.worker.inline").InlineBackend()  # type: ignore[no-any-return]


def _threads() -> Backend:
    return importlib.import_module("fanfold.worker.threads").ThreadsBackend()  # type: ignore[no-any-return]


def _processes() -> Backend:
    return importlib.import_module("fanfold.worker.processes").ProcessesBackend()  # type: ignore[no-any-return]


_BACKENDS: dict[str, Callable[[], Backend]] = {"inline": _inline, "threads": _threads, "processes": _processes}


def start_ranks(backend: Backend, order: StartOrder, deadline: Deadline) -> Ranks:
    """Start the ranks of an order, and let them know when all are there.

    Raises:
        WorkerStartError: A rank could not build its worker, or its `on_start` failed; nothing is left running.
        WaitTimeoutError: Not all ranks were ready in time; nothing is left running.
    """
    ranks = Ranks(backend, backend.start(order, deadline), order.recipe.cls, order, owned=True)
    greet(ranks, ranks.members, deadline)
    return ranks


def greet(ranks: Ranks, members: Sequence[StartedRank], deadline: Deadline) -> None:
    """Call `on_start` on these ranks; where it fails, all ranks are ended.

    Raises:
        WorkerStartError: It failed on a rank.
        WaitTimeoutError: It was not over in time.
    """
    if not overrides_hook(ranks.cls, "on_start"):
        return
    outcomes = ranks.run_hook(members, "on_start", (), deadline.left())
    failed = [(member, outcome) for member, outcome in outcomes if isinstance(outcome, Failure)]
    late = [member.name for member, outcome in outcomes if outcome is None]
    if failed or late:
        ranks.close()
    for member, outcome in failed:
        raise WorkerStartError(
            f"on_start of rank {member.rank} ({member.name}) failed: "
            f"{type(outcome.error).__name__}: {outcome.error}\n{outcome.trace}"
        ) from outcome.error
    if late:
        raise WaitTimeoutError(deadline.what, deadline.seconds, missing=f"on_start of {', '.join(late)}")


def renew_ranks(ranks: Ranks, which: Iterable[int], deadline: Deadline) -> list[int]:
    """Renew ranks; returns which.

    Raises:
        GroupUsageError: The backend cannot, or the ranks were started by others.
        WorkerStartError: One could not build its worker.
    """
    backend = ranks.backend
    if not isinstance(backend, Renews) or ranks.order is None:
        why = (
            "they were started by others" if ranks.order is None else f"the {backend.name} backend cannot replace ranks"
        )
        raise GroupUsageError(f"the ranks of {ranks.cls.__qualname__} cannot be recovered: {why}; start the group anew")
    wanted = sorted(set(which))
    members = [ranks.members[rank] for rank in wanted]
    if members:
        renewed = backend.renew(ranks.order, members, deadline)
        ranks.replace(renewed)
        greet(ranks, renewed, deadline)
    return wanted


def in_trouble(ranks: Ranks) -> list[int]:
    """Return the ranks that are gone or still inside a call that has ended."""
    busy = {member.rank for member, _ in ranks.busy()}
    lost = set(ranks.backend.lost(ranks.members)) if isinstance(ranks.backend, Watches) else set()
    return sorted(busy | lost)
