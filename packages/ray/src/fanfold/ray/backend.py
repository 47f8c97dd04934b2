"""The backend whose ranks are actors on a cluster."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from fanfold.ray.actors import call_name
from fanfold.ray.checking import inputs_are_checked
from fanfold.ray.cluster import current_namespace
from fanfold.ray.errors import LifetimeError, StaleResultError
from fanfold.ray.keeping import KeptCall, Returned
from fanfold.ray.ledger import CallLedger, current_ledger, phase
from fanfold.ray.names import named_actors, wait_until_free
from fanfold.ray.obituary import obituary
from fanfold.ray.orders import Order
from fanfold.ray.outcomes import fetch, values_if_all_succeeded
from fanfold.ray.parcels import placed, placed_together
from fanfold.ray.passing import Parts, Passed, passed_on
from fanfold.ray.refs import Ref, value_of
from fanfold.ray.results import returns_of
from fanfold.ray.sidedoor import ring
from fanfold.ray.starting import Circumstances, Launch, StartWatcher, end_actors
from fanfold.worker import (
    Deadline,
    Failure,
    GroupUsageError,
    Outcome,
    RankStatus,
    Request,
    StartedRank,
    StartOrder,
    Success,
    WorkerLostError,
)

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.ray.answers import RankAnswer
    from fanfold.ray.bundles import BundlePlace
    from fanfold.ray.placement import RayResourcePool

_TOGETHER = 0.005  # seconds; a failure that comes alone is told so much later
_LAST_WORDS = 2.0  # seconds for Ray to say how an actor that is gone went


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
        visible_devices: "own": a rank sees its own devices, as Ray shows them; "node": those of all ranks on its node.
        runtime_env: What goes into the runtime environment of each actor besides what its recipe wants.
        class_name: Name of the workers' class, where they are not started here.
        answers: By rank, what it said of itself, where it was not started here.

    Raises:
        LifetimeError: Actors and pool would not live equally long.
    """

    name = "ray"
    kept_call = KeptCall

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
        visible_devices: str = "own",
        runtime_env: Mapping[str, Any] | None = None,
        class_name: str = "",
        answers: Mapping[int, RankAnswer] | None = None,
    ) -> None:
        if pool is not None:
            check_lifetimes(pool, detached=detached)
        self.pool = pool
        self.detached = detached
        self.namespace = current_namespace() if namespace is None else namespace
        self.master = master
        self.answers = dict(answers or {})
        self.places: list[BundlePlace] = []
        self.ranks: list[StartedRank] = []
        self.last_call: CallLedger | None = None
        self.secret = os.urandom(16).hex()
        self.obituaries: dict[int, WorkerLostError] = {}
        self._replaced: dict[str, RankAnswer] = {}
        self._given_master = master
        self._master_port_range = master_port_range
        self._use_gpu = use_gpu
        self._watcher = watcher
        self._visible_devices = visible_devices
        self._runtime_env = dict(runtime_env or {})
        self._class_name = class_name

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
            launch = Launch(order, places, self._circumstances(self.pool), range(len(order.slots)))
            self.ranks = launch.run(deadline)
        except BaseException:
            self.pool.discharge(places)
            raise
        self.places, self._class_name, self.master = places, order.recipe.cls.__qualname__, launch.master
        self.answers.update(launch.answers)
        return self.ranks

    def _circumstances(self, pool: RayResourcePool, port_range: tuple[int, int] | None = None) -> Circumstances:
        share = pool.share()
        return Circumstances(
            namespace=self.namespace,
            detached=self.detached,
            secret=self.secret,
            share=share if self._use_gpu else {**share, "num_gpus": 0.0},
            master=None if port_range else self.master,
            master_port_range=port_range or self._master_port_range,
            watcher=self._watcher,
            visible_devices=self._visible_devices,
            runtime_env=self._runtime_env,
        )

    def renew(self, order: StartOrder, ranks: Sequence[StartedRank], deadline: Deadline) -> Sequence[StartedRank]:
        """Kill these ranks and start them anew in their bundles, under their names, with the same rank environment.

        Raises:
            GroupUsageError: The ranks were started by another process.
            WorkerStartError: A rank could not build its worker; its own error is the cause.
            WaitTimeoutError: Not all ranks were ready in time.
        """
        if self.pool is None or not self.places:
            raise GroupUsageError("ranks are renewed by the process that started them; this one only reaches them")
        end_actors([rank.door for rank in ranks])
        wait_until_free([rank.name for rank in ranks], self.namespace, deadline.left())
        wanted = [rank.rank for rank in ranks]
        launch = Launch(order, self.places, self._renewal(self.pool, wanted), wanted, self.answers)
        renewed = launch.run(deadline)
        old = [self.answers[rank] for rank in wanted if rank in self.answers]
        self._replaced.update({answer.bell.actor_id: answer for answer in old if answer.bell is not None})
        self.answers.update(launch.answers)
        self.master = launch.master
        return renewed

    def _renewal(self, pool: RayResourcePool, wanted: Sequence[int]) -> Circumstances:
        # Rank 0's process held the port; a new one takes the same again where others are left who know it.
        keeps = self._given_master is None and 0 in wanted and len(wanted) < len(self.places)
        if self._given_master is None and len(wanted) == len(self.places):
            self.master = None
        port = (self.master[1], self.master[1] + 1) if keeps and self.master is not None else None
        return self._circumstances(pool, port)

    def place(self, value: Any) -> Any:
        """Put a value into the object store, once, unless it is small; a reference stays what it is.

        Raises:
            NotPicklableError: The value cannot travel.
        """
        return self.place_all([value])[0]

    def place_all(self, values: Sequence[Any]) -> list[Any]:
        """Do so with several, large ones at the same time.

        Raises:
            NotPicklableError: A value cannot travel.
        """
        given = [value for value in values if not isinstance(value, Passed)]
        with phase("put"):
            found = iter(placed_together(given))
        made = [value if isinstance(value, Passed) else next(found) for value in values]
        if (ledger := current_ledger()) is not None:
            for each in zip(made, values, strict=True):
                ledger.note_placed(*each)
        return made

    def passed_on(self, value: Any, deadline: Deadline) -> Passed | None:
        """Return what to place of rows that this cluster keeps; None for what is elsewhere."""
        with phase("plan"):
            return passed_on(value, deadline)

    def call(self, rank: StartedRank, request: Request) -> Ref | Returned:
        """Submit a call to one rank."""
        return self.call_all([rank], [request])[0]

    def call_all(self, ranks: Sequence[StartedRank], requests: Sequence[Request]) -> list[Ref | Returned]:
        """Submit a call under the method's own name, as Ray's timeline and task list show it."""
        with phase("submit"):
            label = call_name(self._class_name, requests[0].label)
            method = requests[0].method
            sent = method if isinstance(method, str) else placed(method, "a function")
            return [self._submitted(each, label, sent) for each in zip(ranks, requests, strict=True)]

    def _submitted(self, each: tuple[StartedRank, Request], label: str, method: Any) -> Ref | Returned:
        rank, request = each
        parts, stays = Parts(), request.stays and request.wanted
        values = [parts.taken(value) for value in (*request.args, *request.kwargs.values())]
        order = Order(
            request.context,
            method,
            tuple(request.kwargs),
            request.wanted,
            request.readonly,
            stays,
            len(parts.references),
            checked=inputs_are_checked(),
            apart=tuple(request.apart) if stays else (),
        )
        submit = getattr(rank.door, label, None) or rank.door.fanfold_call
        returns = returns_of(order.apart) if stays else 1
        submitted: Any = submit.options(name=label, num_returns=returns).remote(
            order.packed(), *values, *parts.references
        )
        if (ledger := current_ledger()) is not None:
            ledger.note_sent(
                rank.rank, [*(value for value in values if isinstance(value, ray.ObjectRef)), *parts.references]
            )
        return Returned.of(submitted, order.apart) if stays else submitted

    def wait(self, handles: Sequence[Ref], limit: float) -> set[int]:
        """Return the positions of finished calls as soon as there is one, or an empty set after `limit` seconds.

        Ranks that finish within a moment of each other are told of together: each time that this process wakes up costs
        as much as a small call.
        """
        references, together = list(handles), min(limit, _TOGETHER)
        with phase("execute"):
            finished, _ = ray.wait(references, num_returns=len(references), timeout=together, fetch_local=False)
            if not finished and limit > together:
                finished, _ = ray.wait(references, timeout=limit - together, fetch_local=False)
        ready = set(finished)
        return {position for position, reference in enumerate(references) if reference in ready}

    def fetch_all(self, handles: Sequence[Ref]) -> list[Outcome]:
        """Bring the outcomes of finished calls, at once where none of them has failed."""
        with phase("fetch"):  # where ranks have been started anew, each result is asked whose it is
            values = None if self._replaced else values_if_all_succeeded(handles)
        if values is None:
            return [self.fetch(handle) for handle in handles]
        if (ledger := current_ledger()) is not None:
            ledger.note_brought(handles)
        return [Success(value) for value in values]

    def fetch(self, handle: Ref) -> Outcome:
        """Bring the outcome of a finished call; what a rank that has been started anew had returned is refused."""
        with phase("fetch"):
            outcome = fetch(handle, self._answer_behind)
        if (ledger := current_ledger()) is not None:
            ledger.note_brought([handle])
        if isinstance(outcome, Failure):
            if isinstance(outcome.error, WorkerLostError):
                self.obituaries.update(dict.fromkeys(outcome.error.ranks, outcome.error))
        elif self._replaced and (old := self._replaced.get(handle.task_id().actor_id().hex())) is not None:
            return Failure(_stale(old))
        return outcome

    def _answer_behind(self, actor_id: str) -> RankAnswer | None:
        known = (answer for answer in self.answers.values() if answer.bell is not None)
        found = next((answer for answer in known if answer.bell and answer.bell.actor_id == actor_id), None)
        return found or self._replaced.get(actor_id)

    def in_collectives(self, ranks: Sequence[StartedRank], limit: float = _LAST_WORDS) -> list[int]:
        """Return which ranks are members of a torch process group; those that do not answer are not among them."""
        bells = [answer.bell if (answer := self.answers.get(rank.rank)) else None for rank in ranks]
        said = ring(bells, "collectives", [None] * len(bells), limit)
        return [rank.rank for rank, answer in zip(ranks, said, strict=True) if answer]

    def lost(self, ranks: Sequence[StartedRank]) -> Mapping[int, Exception]:
        """Return, by rank, how those went that are gone."""
        living = {name for namespace, name in named_actors() if namespace == self.namespace}
        found = {rank.rank: _obituary(rank, self.answers.get(rank.rank)) for rank in ranks if rank.name not in living}
        return {rank: error for rank, error in found.items() if error is not None}

    def ask(self, ranks: Sequence[StartedRank], limit: float) -> Mapping[int, RankStatus]:
        """Ask all ranks where they are and return what has come after `limit` seconds, with a note for the others."""
        bells = [answer.bell if (answer := self.answers.get(rank.rank)) else None for rank in ranks]
        said = ring(bells, "status", [None] * len(bells), limit)
        return {rank.rank: _status(rank.rank, answer) for rank, answer in zip(ranks, said, strict=True)}

    def cancel(self, handles: Sequence[Ref], limit: float) -> Sequence[str]:
        """Drop calls that have not begun and flag those that run; say for each which it was."""
        finished = self.wait(handles, 0)
        tasks = [handle.task_id() for handle in handles]
        behind = [self._answer_behind(task.actor_id().hex()) for task in tasks]
        bells = [None if answer is None else answer.bell for answer in behind]
        said = ring(bells, "cancel", [task.hex() for task in tasks], limit)
        return ["finished" if position in finished else answer or "running" for position, answer in enumerate(said)]

    def spans(self, since: float, limit: float = _LAST_WORDS) -> dict[str, list[tuple[str, float, float]]]:
        """Return, by worker, which calls have ended since a moment, and when each began and ended, by this clock."""
        known = [answer for answer in self.answers.values() if answer.bell is not None]
        asked = time.time()
        said = ring([answer.bell for answer in known], "spans", [since] * len(known), limit)
        answered = time.time()
        return {
            answer.name: [(name, began + shift, ended + shift) for name, began, ended in found["spans"]]
            for answer, found in zip(known, said, strict=True)
            if found is not None
            for shift in [_shift(found["now"], asked, answered)]
        }

    def ticket(self, ranks: Sequence[StartedRank]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what gives this backend and its ranks in another process of the cluster."""
        return _reached, (self.namespace, self._class_name, self.answers, tuple(ranks))

    def stop(self, ranks: Sequence[StartedRank], limit: float) -> None:
        """Kill ranks, rank 0 last, and return when their names are free; ranks that are gone already are no error."""
        if not ray.is_initialized():  # they ended with this process's connection to the cluster
            return
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


def _reached(
    namespace: str, class_name: str, answers: Mapping[int, RankAnswer], ranks: Sequence[StartedRank]
) -> tuple[RayBackend, Sequence[StartedRank]]:
    return RayBackend(None, namespace=namespace, class_name=class_name, answers=answers), ranks


def _stale(old: RankAnswer) -> StaleResultError:
    rank = "a rank" if old.info is None else f"rank {old.info.rank}"
    return StaleResultError(
        f"this result comes from {rank} ({old.name}, pid {old.pid}) of generation {old.generation}, which has been "
        "started anew since; call again"
    )


def _shift(now: float, asked: float, answered: float) -> float:
    """What to add to another machine's clock; nothing while it may be this one's."""
    return 0.0 if asked <= now <= answered else (asked + answered) / 2 - now


def _status(rank: int, answer: Any) -> RankStatus:
    return RankStatus(rank, note="does not answer") if answer is None else RankStatus(*answer)


def _obituary(rank: StartedRank, answer: RankAnswer | None) -> WorkerLostError | None:
    # Also for workers whose names are elsewhere or unknown: those answer, or are busy.
    try:
        value_of(rank.door.__ray_ready__.remote(), _LAST_WORDS)
    except (RayActorError, OutOfMemoryError) as error:
        return obituary(error, answer)
    except GetTimeoutError:
        return None
    return None
