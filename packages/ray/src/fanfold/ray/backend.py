"""The backend whose ranks are actors on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.ray.cluster import current_namespace
from fanfold.ray.errors import LifetimeError
from fanfold.ray.names import wait_until_free
from fanfold.ray.outcomes import fetch
from fanfold.ray.starting import Circumstances, Launch, StartWatcher, end_actors
from fanfold.worker import Deadline, GroupUsageError, NotPicklableError, Outcome, Request, StartedRank, StartOrder

import ray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.ray.actors import RankAnswer
    from fanfold.ray.placement import BundlePlace, RayResourcePool
    from fanfold.ray.refs import Ref

_INLINE_BYTES = 16384  # up to that a value travels with the call: putting it first would cost more
_SCALARS = (type(None), bool, int, float, complex)


class RayBackend:
    """Ranks as actors, one in each bundle of a pool.

    Args:
        pool: Where the actors live; None for a backend that only reaches ranks which others started.
        detached: Whether they outlive this driver. The pool has to agree.
        namespace: In which namespace their names are; this process's unless given.
        master: Address and port of the ranks' meeting point, where rank 0 is not to choose.
        master_port_range: From which ports of its node rank 0 chooses, the last one excluded.
        use_gpu: Whether the actors take their share of the pool's GPUs.
        watcher: Hears of a start.
        class_name: Name of the workers' class, where they are not started here.

    Raises:
        LifetimeError: Actors and pool would not live equally long.
    """

    name = "ray"

    def __init__(  # noqa: PLR0913  # a backend is made once, by keyword
        self,
        pool: RayResourcePool | None,
        *,
        detached: bool = False,
        namespace: str | None = None,
        master: tuple[str, int] | None = None,
        master_port_range: tuple[int, int] | None = None,
        use_gpu: bool = True,
        watcher: StartWatcher | None = None,
        class_name: str = "",
    ) -> None:
        if pool is not None:
            check_lifetimes(pool, detached=detached)
        self.pool = pool
        self.detached = detached
        self.namespace = current_namespace() if namespace is None else namespace
        self.answers: list[RankAnswer] = []
        self.places: list[BundlePlace] = []
        self._master, self._master_port_range = master, master_port_range
        self._use_gpu = use_gpu
        self._watcher = watcher
        self._class_name = class_name
        self.ranks: list[StartedRank] = []

    def start(self, order: StartOrder, deadline: Deadline) -> Sequence[StartedRank]:
        """Start all ranks at once and return them in rank order when each has built its worker.

        Raises:
            WorkerStartError: A rank could not build its worker; its own error is the cause.
            WaitTimeoutError: Not all ranks were ready in time.
            NameTakenError: A worker of that name lives already.
        """
        if self.pool is None:
            raise GroupUsageError("a backend without a pool reaches ranks that exist; it cannot start any")
        places = self.pool.bundles()
        self.pool.admit(order.group, places)
        try:
            launch = Launch(order, places, self._circumstances(self.pool))
            self.ranks = launch.run(deadline)
        except BaseException:
            self.pool.discharge(places)
            raise
        self.answers, self.places, self._class_name = launch.answers, places, order.recipe.cls.__qualname__
        return self.ranks

    def _circumstances(self, pool: RayResourcePool) -> Circumstances:
        share = pool.share()
        return Circumstances(
            namespace=self.namespace,
            detached=self.detached,
            share=share if self._use_gpu else {**share, "num_gpus": 0.0},
            master=self._master,
            master_port_range=self._master_port_range,
            watcher=self._watcher,
        )

    def place(self, value: Any) -> Any:
        """Put a value into the object store, once, unless it is small; a reference stays what it is.

        Raises:
            NotPicklableError: The value cannot travel.
        """
        if isinstance(value, ray.ObjectRef) or _is_small(value):
            return value
        try:
            return ray.put(value)
        except Exception as error:  # a user's __reduce__ may raise anything
            raise NotPicklableError(
                f"an argument of type {type(value).__qualname__} cannot travel to another rank: "
                f"{type(error).__name__}: {error}"
            ) from error

    def call(self, rank: StartedRank, request: Request) -> Ref:
        """Submit a call under the method's own name, as Ray's timeline and task list show it."""
        label = f"{self._class_name}.{request.label}" if self._class_name else request.label
        values = [*request.args, *request.kwargs.values()]
        submit = rank.door.fanfold_call.options(name=label)
        submitted: Ref = submit.remote(request.context, request.wanted, request.method, tuple(request.kwargs), *values)
        return submitted

    def wait(self, handles: Sequence[Ref], limit: float) -> set[int]:
        """Return the positions of finished calls as soon as there is one, or an empty set after `limit` seconds."""
        references = list(handles)
        finished, _ = ray.wait(references, timeout=limit, fetch_local=False)
        if finished:
            finished, _ = ray.wait(references, num_returns=len(references), timeout=0, fetch_local=False)
        ready = set(finished)
        return {position for position, reference in enumerate(references) if reference in ready}

    def fetch(self, handle: Ref) -> Outcome:
        """Bring the outcome of a finished call."""
        return fetch(handle)

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:
        """Kill ranks, rank 0 last, and return when their names are free; ranks that are gone already are no error."""
        first = [rank for rank in ranks if rank.rank == 0]
        deadline = Deadline(limit, "the end of all ranks")
        for batch in ([rank for rank in ranks if rank.rank != 0], first):
            end_actors([rank.door for rank in batch])
            wait_until_free([rank.name for rank in batch], self.namespace, deadline.left())
        if self.pool is not None:
            self.pool.discharge(self.places)
        self.ranks, self.places = [], []


def check_lifetimes(pool: RayResourcePool, *, detached: bool) -> None:
    """Refuse a group and a pool that would not live equally long.

    Raises:
        LifetimeError: One is detached and the other is not.
    """
    if detached and not pool.detached:
        raise LifetimeError(
            f"the group is detached, but {pool!r} ends with this driver, and the workers in it with it; make the pool "
            "with detached=True too"
        )
    if pool.detached and not detached:
        raise LifetimeError(
            f"{pool!r} is detached, but the group in it ends with this driver and would leave the pool behind; make "
            "the group with detached=True too, or the pool without"
        )


def _is_small(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return len(value) <= _INLINE_BYTES
    return isinstance(value, _SCALARS)
