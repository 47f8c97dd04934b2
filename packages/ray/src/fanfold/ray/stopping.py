"""The end of a detached group, from wherever it is ended: its driver, another one, its custodian."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanfold.ray.manifest import CUSTODIAN_SUFFIX, custodian_name
from fanfold.ray.names import actor_named, named_actors, wait_until_free
from fanfold.ray.placing import remove
from fanfold.ray.refs import value_of
from fanfold.worker import Deadline

import ray
from ray.exceptions import GetTimeoutError, RayActorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray.util.placement_group import PlacementGroup

_ANSWER_LIMIT = 5.0  # seconds for a custodian to say what it holds


def end_workers(names: Sequence[str], namespace: str, limit: float) -> list[str]:
    """Kill named workers, the first one last, and return the names that are not free after `limit` seconds."""
    deadline = Deadline(limit, "the end of all ranks")
    left: list[str] = []
    for batch in (names[1:], names[:1]):
        for name in batch:
            if (handle := actor_named(name, namespace)) is not None:
                ray.kill(handle)
        left += wait_until_free(batch, namespace, deadline.left())
    return left


def say_goodbye(names: Sequence[str], namespace: str, limit: float) -> None:
    """Call `on_stop` of named workers, and wait a while for those that are not in the middle of something."""
    handles = [handle for name in reversed(names) if (handle := actor_named(name, namespace)) is not None]
    said = [handle.on_stop.remote() for handle in handles if hasattr(handle, "on_stop")]
    if said:
        ray.wait(said, num_returns=len(said), timeout=limit)


def remove_unshared(groups: Sequence[PlacementGroup], owner: str, limit: float) -> list[PlacementGroup]:
    """Remove placement groups in which no other detached group lives, and return those that were kept."""
    elsewhere = held_by_other_groups(owner, min(limit, _ANSWER_LIMIT))
    kept = [group for group in groups if elsewhere is None or group.id.hex() in elsewhere]
    remove([group for group in groups if elsewhere is not None and group.id.hex() not in elsewhere])
    return kept


def held_by_other_groups(owner: str, limit: float) -> set[str] | None:
    """Return the ids of placement groups that detached groups other than `owner` use; None where one does not say."""
    found: set[str] = set()
    for namespace, name in named_actors():
        if not name.endswith(CUSTODIAN_SUFFIX) or name == custodian_name(owner):
            continue
        handle = actor_named(name, namespace)
        try:
            found |= set(value_of(handle.state.remote(), limit).placement_group_ids) if handle else set()
        except RayActorError:  # it has just ended
            continue
        except GetTimeoutError:
            return None
    return found
