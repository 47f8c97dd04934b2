"""The custodian of a detached group: an actor of its own that knows the group, and ends it when it has to be ended.

It holds the group's name from the moment of its creation, so that no two groups can have one; it knows every name and
placement group, so that a driver which dies while it starts a group leaves nothing; and it counts the time since
anybody was there. It imports neither torch nor the user's code.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any

from fanfold.ray.cluster import on_head_node
from fanfold.ray.manifest import Manifest, custodian_name
from fanfold.ray.names import actor_named
from fanfold.ray.naming import pools_of, worker_names_of
from fanfold.ray.stopping import end_workers, remove_unshared, say_goodbye

import ray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.dispatch import Mesh
    from fanfold.ray.refs import Actor

    from ray.util.placement_group import PlacementGroup

_WATCH_EVERY = 1.0  # seconds
_LAST_WORDS = 2.0  # seconds to tell whoever asked for the end that it was reached
_SILENT_START = 20.0  # seconds without a word of the driver that starts the group: it is gone


@dataclasses.dataclass(frozen=True)
class GroupState:
    """A detached group at one moment.

    Attributes:
        group: Name of the group.
        namespace: Where its names are.
        state: "starting", "ready", "broken" (ranks are gone), "stopping" or "silent" (nobody answers for it).
        age: Seconds since it was made.
        silence: Seconds since a client was there.
        worker_names: Names of the ranks, in order.
        placement_group_ids: Where they sit.
    """

    group: str
    namespace: str
    state: str
    age: float
    silence: float
    worker_names: Sequence[str]
    placement_group_ids: Sequence[str]


class Custodian:
    """Knows one detached group; runs as a detached actor of no CPU, outside of the group's placement groups."""

    def __init__(self, group: str, namespace: str, keep_for: float | None) -> None:
        self._group, self._namespace, self._keep_for = group, namespace, keep_for
        self._worker_names: list[str] = []
        self._placement_groups: list[PlacementGroup] = []
        self._manifest: Manifest | None = None
        self._stopping = False
        self._over_since: float | None = None
        self._born = self._contact = time.monotonic()
        threading.Thread(target=self._watch, name="fanfold-custodian", daemon=True).start()

    def expect(self, worker_names: Sequence[str], placement_groups: Sequence[PlacementGroup]) -> None:
        """Hear what is about to be started."""
        self._worker_names, self._placement_groups = list(worker_names), list(placement_groups)
        self.touch()

    def settle(self, manifest: Manifest) -> None:
        """Hear that all ranks are ready."""
        self._manifest = manifest
        self.touch()

    def touch(self) -> None:
        """Hear that a client is there."""
        self._contact = time.monotonic()

    def manifest(self) -> Manifest | None:
        """Return what a client needs; None while the group starts."""
        if self._manifest is not None:  # whoever waits for a start must not keep it alive when its driver is gone
            self.touch()
        return self._manifest

    def peek(self) -> Manifest | None:
        """Return the same without counting as a client."""
        return self._manifest

    def learn_meshes(self, meshes: Mapping[str, Mapping[str, Mesh]]) -> None:
        """Hear which meshes the ranks have registered."""
        if self._manifest is not None:
            self._manifest = dataclasses.replace(self._manifest, meshes={**self._manifest.meshes, **meshes})

    def state(self) -> GroupState:
        """Say how the group is, without counting as a client."""
        now = time.monotonic()
        return GroupState(
            self._group,
            self._namespace,
            self._word(),
            now - self._born,
            now - self._contact,
            tuple(self._worker_names),
            tuple(group.id.hex() for group in self._placement_groups),
        )

    def stop(self, limit: float) -> list[str]:
        """End all ranks, remove placement groups in which no other group lives, and return the names that are left."""
        self._stopping = True
        self._recall()
        if self._manifest is not None and self._manifest.says_goodbye:
            say_goodbye(self._worker_names, self._namespace, limit / 2)
        left = end_workers(self._worker_names, self._namespace, limit)
        remove_unshared(self._placement_groups, self._group, limit)
        self._over_since = None if left else time.monotonic()
        return left

    def _recall(self) -> None:
        # What a driver says is lost with it while this process is only being started: names tell as much.
        self._worker_names += [
            name for name in worker_names_of(self._group, self._namespace) if name not in self._worker_names
        ]
        known = {group.id.hex() for group in self._placement_groups}
        self._placement_groups += [group for group in pools_of(self._group) if group.id.hex() not in known]

    def _word(self) -> str:
        if self._stopping:
            return "stopping"
        return "starting" if self._manifest is None else "ready"

    def _watch(self) -> None:
        while not self._is_over():
            time.sleep(_WATCH_EVERY)
            if self._over_since is None and self._forsaken():
                self.stop(limit=_SILENT_START)
        ray.kill(ray.get_runtime_context().current_actor)

    def _is_over(self) -> bool:
        # Who has asked for the end takes the name away too, unless it has died in between.
        return self._over_since is not None and time.monotonic() - self._over_since > _LAST_WORDS

    def _forsaken(self) -> bool:
        silence = time.monotonic() - self._contact
        limit = _SILENT_START if self._manifest is None else self._keep_for
        return limit is not None and silence > limit


def create_custodian(group: str, namespace: str, keep_for: float | None) -> Actor:
    """Make the custodian of a group, and take its name by that, at once.

    Raises:
        ValueError: Ray's own, for a name that is taken.
    """
    actor: Any = ray.remote(Custodian).options(
        name=custodian_name(group),
        namespace=namespace,
        lifetime="detached",
        num_cpus=0,
        max_concurrency=8,
        # Where the cluster's own tables are: a node that is lost takes ranks along, but not what tells of them.
        **on_head_node(),
    )
    return actor.remote(group, namespace, keep_for)


def custodian_of(group: str, namespace: str) -> Actor | None:
    """Return the custodian of a group, or None."""
    return actor_named(custodian_name(group), namespace)
