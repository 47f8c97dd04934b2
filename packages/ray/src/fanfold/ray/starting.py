"""The start of all ranks of a group: everything at once, with what is needed to undo it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fanfold.ray.actors import Birth, rank_class
from fanfold.ray.errors import NameTakenError
from fanfold.ray.names import namespaces_with, wait_until_free
from fanfold.ray.outcomes import fetch
from fanfold.ray.parcels import pack
from fanfold.ray.recipe import merged_options, options_of
from fanfold.ray.refs import value_of
from fanfold.ray.uv_run import slow_start_note
from fanfold.worker import (
    Deadline,
    StartedRank,
    StartOrder,
    Success,
    WaitTimeoutError,
    WorkerStartError,
    rank_infos,
)

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.ray.answers import RankAnswer
    from fanfold.ray.bundles import BundlePlace
    from fanfold.ray.refs import Actor, Ref

    from ray.util.placement_group import PlacementGroup

_logger = logging.getLogger("fanfold.ray")

_LOOK_EVERY = 1.0  # seconds; between two looks a long start is announced and Ctrl-C is heard
_ANNOUNCE_EVERY = 10.0
_UNDO_LIMIT = 10.0
_ANY_PORT: tuple[str, int] = ("", 0)


class StartWatcher(Protocol):
    """Who wants to hear of a start."""

    def begin(self, names: Sequence[str], placement_groups: Sequence[PlacementGroup]) -> None:
        """These workers are about to be created, in these placement groups (one entry a worker)."""

    def waiting(self) -> None:
        """The start is still waited for; said about once a second."""


@dataclass(frozen=True)
class Circumstances:
    """How the actors of a group live.

    Attributes:
        namespace: Where their names are.
        detached: Whether they outlive their driver.
        secret: What has to be known to ask the ranks something from the side.
        share: CPUs and GPUs that each takes of its bundle, as options of an actor.
        master: Address and port of the ranks' meeting point, where it is not chosen on rank 0.
        master_port_range: From which ports it is chosen, the last one excluded; any if None.
        watcher: Hears of the start.
        visible_devices: "own": a rank sees its own devices, as Ray shows them; "node": those of all ranks on its node.
        runtime_env: What goes into the runtime environment of each actor besides what its recipe wants.
    """

    namespace: str
    detached: bool
    secret: str
    share: Mapping[str, Any]
    master: tuple[str, int] | None = None
    master_port_range: tuple[int, int] | None = None
    watcher: StartWatcher | None = None
    visible_devices: str = "own"
    runtime_env: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Launch:
    """One start, of all ranks of an order or of some: which actors exist of it so far."""

    order: StartOrder
    places: Sequence[BundlePlace]
    circumstances: Circumstances
    wanted: Sequence[int]
    known: Mapping[int, RankAnswer] = field(default_factory=dict)
    handles: dict[int, Actor] = field(default_factory=dict)
    answers: dict[int, RankAnswer] = field(default_factory=dict)
    master: tuple[str, int] = _ANY_PORT

    def run(self, deadline: Deadline) -> list[StartedRank]:
        """Start the ranks and return them when each has built its worker; nothing is left of a start that fails.

        Raises:
            WorkerStartError: A rank could not build its worker; its own error is the cause.
            WaitTimeoutError: Not all ranks were ready in time.
            NameTakenError: A worker of that name lives already.
        """
        parcels = self._parcels()
        if self.circumstances.watcher is not None:
            self.circumstances.watcher.begin(self.order.names, [place.placement_group for place in self.places])
        try:
            self._create()
            return self._wait(*self._submit(parcels), deadline)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """End what was started; the names are free afterwards."""
        end_actors(list(self.handles.values()))
        wait_until_free([self.order.names[rank] for rank in self.handles], self.circumstances.namespace, _UNDO_LIMIT)

    def _parcels(self) -> dict[int, Any]:
        recipe = self.order.recipe
        what = f"{recipe!r} with its constructor's arguments"
        own = {rank: recipe.for_rank(rank) for rank in self.wanted}
        if all(each is recipe for each in own.values()):
            return dict.fromkeys(self.wanted, ray.put(pack(recipe, what)))
        return {rank: pack(each, what) for rank, each in own.items()}

    def _create(self) -> None:
        actor_class: Any = ray.remote(rank_class(self.order.recipe.cls))
        options = options_of(self.order.recipe)
        for rank in self.wanted:
            self.handles[rank] = self._actor(actor_class, options, self.order.names[rank], self.places[rank])

    def _actor(self, actor_class: Any, wishes: Mapping[str, Any], name: str, place: BundlePlace) -> Actor:
        options = {
            "name": name,
            "namespace": self.circumstances.namespace,
            "lifetime": "detached" if self.circumstances.detached else None,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(place.placement_group, place.bundle_index),
            **self.circumstances.share,
        }
        if self.circumstances.runtime_env:
            options["runtime_env"] = dict(self.circumstances.runtime_env)
        try:
            made: Actor = actor_class.options(**merged_options(wishes, options)).remote()
        except ValueError as error:
            if name_is_taken(error):
                raise taken(name, self.circumstances.namespace) from error
            raise
        return made

    def _submit(self, parcels: Mapping[int, Any]) -> tuple[dict[int, Ref], dict[int, Ref], Any]:
        # Whatever the ranks meet at, they are told by rank 0 itself: no round through the driver.
        port_range = self.circumstances.master_port_range
        master = self.circumstances.master or self.handles[0].fanfold_rendezvous.remote(port_range)
        infos = rank_infos(self.order.slots, self.order.group, "ray", _ANY_PORT)
        environment, secret = dict(self.order.environment), self.circumstances.secret
        births = {rank: Birth(infos[rank], environment, secret, self._generation(rank)) for rank in self.wanted}
        hellos = {rank: handle.fanfold_hello.remote() for rank, handle in self.handles.items()}
        starts = {
            rank: handle.fanfold_start.remote(births[rank], parcels[rank], master, *self._peers(rank, hellos))
            for rank, handle in self.handles.items()
        }
        return hellos, starts, master

    def _generation(self, rank: int) -> int:
        return self.known[rank].generation + 1 if rank in self.known else 0

    def _peers(self, rank: int, hellos: Mapping[int, Ref]) -> list[Any]:
        # Ranks of one node tell each other what devices they have, without the driver in between.
        if self.circumstances.visible_devices == "own":
            return []
        here = self.order.slots[rank].node_rank
        peers = [slot.rank for slot in self.order.slots if slot.node_rank == here]
        return [hellos[peer] if peer in hellos else self.known[peer] for peer in peers]

    def _wait(
        self, hellos: Mapping[int, Ref], starts: Mapping[int, Ref], master: Any, deadline: Deadline
    ) -> list[StartedRank]:
        pending = {start: rank for rank, start in starts.items()}
        announced = deadline.left()
        while pending:
            finished, _ = ray.wait(list(pending), timeout=min(_LOOK_EVERY, deadline.left()), fetch_local=False)
            for start in finished:
                rank = pending.pop(start)
                self.answers[rank] = self._answer(rank, start, hellos[rank])
            if deadline.passed() and pending:
                raise self._too_late(sorted(pending.values()), hellos, deadline)
            announced = self._announce(len(pending), announced, deadline)
        self.master = master if isinstance(master, tuple) else value_of(master, deadline.seconds)
        return [self._started(rank) for rank in self.wanted]

    def _announce(self, missing: int, announced: float, deadline: Deadline) -> float:
        if self.circumstances.watcher is not None:
            self.circumstances.watcher.waiting()
        if not missing or announced - deadline.left() < _ANNOUNCE_EVERY:
            return announced
        left = deadline.left()
        passed = deadline.seconds - left
        ready = len(self.wanted) - missing
        _logger.warning("%s: %d/%d ranks ready after %.0f s", deadline.what, ready, len(self.wanted), passed)
        return left

    def _started(self, rank: int) -> StartedRank:
        answer = self.answers[rank]
        return StartedRank(rank, self.order.names[rank], answer.address, answer.pid, self.handles[rank])

    def _answer(self, rank: int, start: Ref, hello: Ref) -> RankAnswer:
        outcome = fetch(start, lambda _: _arrived(hello))
        if isinstance(outcome, Success):
            return outcome.value  # type: ignore[no-any-return]
        said = f"{type(outcome.error).__name__}: {outcome.error}\n{outcome.trace}".rstrip()
        raise WorkerStartError(
            f"rank {rank} ({self.order.names[rank]}, {self._where(rank, hello)}) could not build its "
            f"{self.order.recipe.cls.__qualname__}: {said}"
        ) from outcome.error

    def _where(self, rank: int, hello: Ref) -> str:
        answer = _arrived(hello)
        return f"node {self.places[rank].address}" + (f", pid {answer.pid}" if answer else "")

    def _too_late(self, missing: Sequence[int], hellos: Mapping[int, Ref], deadline: Deadline) -> WaitTimeoutError:
        return WaitTimeoutError(
            deadline.what, deadline.seconds, "; ".join(self._state(rank, hellos[rank]) for rank in missing)
        )

    def _state(self, rank: int, hello: Ref) -> str:
        who = f"rank {rank} ({self.order.names[rank]}, {self._where(rank, hello)})"
        if _arrived(hello):
            return f"{who} is still importing or building its {self.order.recipe.cls.__qualname__}"
        return f"{who} has no process yet: its bundle is full, or the node cannot start one{slow_start_note()}"


def _arrived(hello: Ref) -> RankAnswer | None:
    ready, _ = ray.wait([hello], timeout=0)
    outcome = fetch(hello, lambda _: None) if ready else None
    return outcome.value if isinstance(outcome, Success) else None


def end_actors(handles: Sequence[Actor]) -> None:
    """Kill actors, the last first; those that are gone are no error."""
    if ray.is_initialized():  # else they ended with this process's connection to the cluster
        for handle in reversed(handles):
            ray.kill(handle)


def name_is_taken(error: ValueError) -> bool:
    """Say whether Ray refuses an actor because of its name."""
    return "already taken" in str(error) or "already exists" in str(error)


def taken(name: str, namespace: str) -> NameTakenError:
    """Make the error for a worker's name that is in use."""
    return NameTakenError(
        f"an actor named {name!r} lives already in namespace {namespace!r} (it is known in {namespaces_with(name)}); "
        "give the group another name_prefix, or end the group that holds it (fanfold.ray.stop_group for a detached one)"
    )
