"""The start of all ranks of a group: everything at once, with what is needed to undo it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fanfold.ray.actors import Birth, RankAnswer, rank_class
from fanfold.ray.errors import NameTakenError
from fanfold.ray.names import namespaces_with, wait_until_free
from fanfold.ray.outcomes import fetch
from fanfold.ray.portable import pack_recipe
from fanfold.ray.recipe import RayClassWithInitArgs, as_ray_recipe, merged_options
from fanfold.ray.refs import value_of
from fanfold.worker import (
    Deadline,
    Failure,
    StartedRank,
    StartOrder,
    WaitTimeoutError,
    WorkerStartError,
    rank_infos,
)

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.ray.placement import BundlePlace
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
        share: CPUs and GPUs that each takes of its bundle, as options of an actor.
        master: Address and port of the ranks' meeting point, where it is not chosen on rank 0.
        master_port_range: From which ports it is chosen, the last one excluded; any if None.
        watcher: Hears of the start.
    """

    namespace: str
    detached: bool
    share: Mapping[str, float]
    master: tuple[str, int] | None = None
    master_port_range: tuple[int, int] | None = None
    watcher: StartWatcher | None = None


@dataclass
class Launch:
    """One start: which actors exist of it so far."""

    order: StartOrder
    places: Sequence[BundlePlace]
    circumstances: Circumstances
    handles: list[Actor] = field(default_factory=list)
    answers: list[RankAnswer] = field(default_factory=list)

    def run(self, deadline: Deadline) -> list[StartedRank]:
        """Start every rank and return them when each has built its worker; nothing is left of a start that fails.

        Raises:
            WorkerStartError: A rank could not build its worker; its own error is the cause.
            WaitTimeoutError: Not all ranks were ready in time.
            NameTakenError: A worker of that name lives already.
        """
        recipe = as_ray_recipe(self.order.recipe)
        packed = pack_recipe((recipe.cls, recipe.args, recipe.kwargs), f"{recipe!r} with its constructor's arguments")
        if self.circumstances.watcher is not None:
            self.circumstances.watcher.begin(self.order.names, [place.placement_group for place in self.places])
        try:
            self._create(recipe)
            return self._wait(*self._submit(packed), deadline)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """End what was started; the names are free afterwards."""
        end_actors(self.handles)
        wait_until_free(self.order.names[: len(self.handles)], self.circumstances.namespace, _UNDO_LIMIT)

    def _create(self, recipe: RayClassWithInitArgs) -> None:
        actor_class: Any = ray.remote(rank_class(recipe.cls))
        for name, place in zip(self.order.names, self.places, strict=True):
            self.handles.append(self._actor(actor_class, recipe, name, place))

    def _actor(self, actor_class: Any, recipe: RayClassWithInitArgs, name: str, place: BundlePlace) -> Actor:
        options = {
            "name": name,
            "namespace": self.circumstances.namespace,
            "lifetime": "detached" if self.circumstances.detached else None,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(place.placement_group, place.bundle_index),
            **self.circumstances.share,
        }
        try:
            made: Actor = actor_class.options(**merged_options(recipe.options, options)).remote()
        except ValueError as error:
            if name_is_taken(error):
                raise taken(name, self.circumstances.namespace) from error
            raise
        return made

    def _submit(self, packed: tuple[bytes, list[Any]]) -> tuple[list[Ref], list[Ref]]:
        recipe, references = ray.put(packed[0]), packed[1]
        master = self.circumstances.master or self.handles[0].fanfold_rendezvous.remote(
            self.circumstances.master_port_range
        )
        # Whatever the ranks meet at, they are told by rank 0 itself: no round through the driver.
        hellos: list[Ref] = [handle.fanfold_hello.remote() for handle in self.handles]
        infos = rank_infos(self.order.slots, self.order.group, "ray", _ANY_PORT)
        births = [Birth(info, dict(self.order.environment), references) for info in infos]
        starts: list[Ref] = [
            handle.fanfold_start.remote(birth, recipe, master)
            for handle, birth in zip(self.handles, births, strict=True)
        ]
        return hellos, starts

    def _wait(self, hellos: Sequence[Ref], starts: Sequence[Ref], deadline: Deadline) -> list[StartedRank]:
        pending = dict(zip(starts, range(len(starts)), strict=True))
        announced = deadline.left()
        while pending:
            finished, _ = ray.wait(list(pending), timeout=min(_LOOK_EVERY, deadline.left()), fetch_local=False)
            for start in finished:
                self._check(pending.pop(start), start, hellos)
            if deadline.passed() and pending:
                raise self._too_late(sorted(pending.values()), hellos, deadline)
            announced = self._announce(len(starts) - len(pending), announced, deadline)
        self.answers = [value_of(hello, deadline.seconds) for hello in hellos]
        return [self._started(rank) for rank in range(len(starts))]

    def _announce(self, ready: int, announced: float, deadline: Deadline) -> float:
        if self.circumstances.watcher is not None:
            self.circumstances.watcher.waiting()
        if ready == len(self.handles) or announced - deadline.left() < _ANNOUNCE_EVERY:
            return announced
        _logger.info("%s: %d/%d ranks ready", deadline.what, ready, len(self.handles))
        return deadline.left()

    def _started(self, rank: int) -> StartedRank:
        answer = self.answers[rank]
        return StartedRank(rank, self.order.names[rank], answer.address, answer.pid, self.handles[rank])

    def _check(self, rank: int, start: Ref, hellos: Sequence[Ref]) -> None:
        outcome = fetch(start)
        if isinstance(outcome, Failure):
            where = self._where(rank, hellos[rank])
            said = f"{type(outcome.error).__name__}: {outcome.error}\n{outcome.trace}".rstrip()
            raise WorkerStartError(
                f"rank {rank} ({self.order.names[rank]}, {where}) could not build its "
                f"{self.order.recipe.cls.__qualname__}: {said}"
            ) from outcome.error

    def _where(self, rank: int, hello: Ref) -> str:
        answer = _arrived(hello)
        return f"node {self.places[rank].address}" + (f", pid {answer.pid}" if answer else "")

    def _too_late(self, missing: Sequence[int], hellos: Sequence[Ref], deadline: Deadline) -> WaitTimeoutError:
        return WaitTimeoutError(
            deadline.what, deadline.seconds, "; ".join(self._state(rank, hellos[rank]) for rank in missing)
        )

    def _state(self, rank: int, hello: Ref) -> str:
        who = f"rank {rank} ({self.order.names[rank]}, {self._where(rank, hello)})"
        if _arrived(hello):
            return f"{who} is still importing or building its {self.order.recipe.cls.__qualname__}"
        return f"{who} has no process yet: its bundle is full, or the node cannot start one"


def _arrived(hello: Ref) -> RankAnswer | None:
    ready, _ = ray.wait([hello], timeout=0)
    outcome = fetch(hello) if ready else None
    return None if outcome is None or isinstance(outcome, Failure) else outcome.value


def end_actors(handles: Sequence[Actor]) -> None:
    """Kill actors, the last first; those that are gone are no error."""
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
