"""The driver's side of a detached group: taking its name, telling its custodian, being there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from fanfold.ray.custodian import GroupState, create_custodian, custodian_of
from fanfold.ray.errors import NameTakenError
from fanfold.ray.manifest import Manifest, class_path, custodian_name, methods_of, own_versions, rank_records, schema_of
from fanfold.ray.names import actor_named, wait_until_free
from fanfold.ray.refs import awaited, value_of
from fanfold.ray.starting import name_is_taken
from fanfold.worker.worker import overrides_hook

import ray
from ray import cloudpickle
from ray.exceptions import RayActorError, RayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.dispatch import Mesh
    from fanfold.ray.backend import RayBackend
    from fanfold.ray.refs import Actor
    from fanfold.worker import StartedRank

    from ray.util.placement_group import PlacementGroup

T = TypeVar("T")

_ANSWER_LIMIT = 10.0  # seconds for a custodian's answer
_PROCESS_LIMIT = 60.0  # seconds for its first one: its process may have to be started, on a node that does other things
_TOUCHES_PER_KEEP = 4  # how often a client shows up within the time that a group is kept for


class Detachment:
    """A detached group that this driver starts, as its custodian is told about it.

    Args:
        group: Name of the group.
        namespace: Where its names are.
        keep_for: Seconds without any client after which the group ends itself; None for never.

    Raises:
        NameTakenError: A detached group of that name lives already; says in which state it is.
    """

    def __init__(self, group: str, namespace: str, keep_for: float | None) -> None:
        self.group, self.namespace, self.keep_for = group, namespace, keep_for
        self.custodian = _claim(group, namespace, keep_for)

    def begin(self, names: Sequence[str], placement_groups: Sequence[PlacementGroup]) -> None:
        """Tell what is about to be started, so that it is cleaned up if this driver dies."""
        distinct = {group.id.hex(): group for group in placement_groups}
        self.custodian.expect.remote(list(names), list(distinct.values()))

    def waiting(self) -> None:
        """Tell that this driver is alive and still waiting for the ranks."""
        self.custodian.touch.remote()

    def settle(self, backend: RayBackend, members: Sequence[StartedRank], cls: type) -> None:
        """Tell that all ranks are ready, and everything that another process has to know to use them."""
        assert backend.pool is not None  # a group that is being started has a pool
        manifest = Manifest(
            group=self.group,
            namespace=self.namespace,
            class_path=class_path(cls),
            class_pickle=cloudpickle.dumps(cls),
            methods=methods_of(cls),
            schema=schema_of(cls),
            versions=own_versions(),
            ranks=rank_records(members, backend.answers, backend.places),
            process_on_nodes=backend.pool.store,
            max_colocate_count=backend.pool.max_colocate_count,
            keep_for=self.keep_for,
            placement_groups=backend.pool.pgs,
            says_goodbye=overrides_hook(cls, "on_stop"),
        )
        try:
            self._tell(manifest)
        except RayActorError:  # it died while the ranks started: they are there, and it is made anew
            self.custodian = _claim(self.group, self.namespace, self.keep_for)
            self.begin([member.name for member in members], [place.placement_group for place in backend.places])
            self._tell(manifest)

    def _tell(self, manifest: Manifest) -> None:
        what, name = f"telling the custodian of group {self.group!r} about its ranks", custodian_name(self.group)
        awaited(self.custodian.settle.remote(manifest), _PROCESS_LIMIT, what, name)

    def abandon(self) -> None:
        """Give the name back: the group did not come to be."""
        ray.kill(self.custodian)
        wait_until_free([custodian_name(self.group)], self.namespace, _ANSWER_LIMIT)


def _claim(group: str, namespace: str, keep_for: float | None) -> Actor:
    try:
        return create_custodian(group, namespace, keep_for)
    except ValueError as error:
        if not name_is_taken(error):
            raise
        raise NameTakenError(_who_has_it(group, namespace)) from error


def _who_has_it(group: str, namespace: str) -> str:
    state = ask_state(custodian_of(group, namespace))
    ways = (
        f"Attach to it with fanfold.ray.attach({group!r}), end it with fanfold.ray.stop_group({group!r}), or take "
        "another name_prefix"
    )
    if state is None:
        return f"a detached group {group!r} lives in namespace {namespace!r}, and its custodian does not answer. {ways}"
    gone = [name for name in state.worker_names if actor_named(name, namespace) is None]
    lost = (
        f", but {', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone" if gone and state.state == "ready" else ""
    )
    return (
        f"a detached group {group!r} lives already in namespace {namespace!r}: {state.state}, "
        f"{len(state.worker_names)} ranks, {state.age:.0f} s old{lost}. {ways}"
    )


def ask_state(custodian: Actor | None, limit: float = _ANSWER_LIMIT) -> GroupState | None:
    """Ask a custodian how its group is; None if it is gone or does not answer."""
    if custodian is None:
        return None
    try:
        return value_of(custodian.state.remote(), limit)  # type: ignore[no-any-return]
    except RayError:
        return None


class Presence:
    """Shows a group's custodian, from a thread of its own, that a client is there, until it is ended."""

    def __init__(self, custodian: Actor, keep_for: float) -> None:
        self._over = threading.Event()
        # A function, not a method: the thread must not keep this object, whose end ends the thread.
        arguments = (self._over, custodian, keep_for / _TOUCHES_PER_KEEP)
        threading.Thread(target=_touch_until, args=arguments, name="fanfold-presence", daemon=True).start()

    def end(self) -> None:
        """Stop showing up; doing it twice is fine."""
        self._over.set()

    __del__ = end

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # whoever gets a copy of the group is no client of its own


class AtHome(Generic[T]):
    """Something that stays with this process: it arrives nowhere as nothing."""

    def __init__(self, value: T | None = None) -> None:
        self.value = value

    def __reduce__(self) -> tuple[type[AtHome[T]], tuple[()]]:
        return AtHome, ()


def _touch_until(over: threading.Event, custodian: Actor, every: float) -> None:
    while not over.wait(every) and ray.is_initialized():
        custodian.touch.remote()


def tell_meshes(custodian: Actor, meshes: Mapping[str, Mapping[str, Mesh]]) -> None:
    """Let later clients know the meshes of each role without asking the ranks."""
    custodian.learn_meshes.remote({role: dict(known) for role, known in meshes.items()})
