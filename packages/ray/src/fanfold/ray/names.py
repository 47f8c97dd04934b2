"""Names of actors in a cluster: who holds one, in which namespace, and when it is free again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fanfold.worker import Deadline

import ray

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanfold.ray.refs import Actor

_PAUSE = 0.02  # seconds between two looks


def actor_named(name: str, namespace: str) -> Actor | None:
    """Return the living actor of that name, or None."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


def named_actors() -> list[tuple[str, str]]:
    """Return namespace and name of every named actor of the cluster, sorted."""
    return sorted((row["namespace"], row["name"]) for row in ray.util.list_named_actors(all_namespaces=True))


def namespaces_with(name: str) -> list[str]:
    """Return the namespaces in which an actor of that name lives, sorted."""
    return [namespace for namespace, found in named_actors() if found == name]


def wait_until_free(names: Iterable[str], namespace: str, limit: float) -> list[str]:
    """Wait until nobody holds these names, and return those that somebody still holds after `limit` seconds."""
    left = list(names) if ray.is_initialized() else []
    deadline = Deadline(limit, "names to be free")
    while left := [name for name in left if actor_named(name, namespace) is not None]:
        if deadline.passed():
            return left
        time.sleep(_PAUSE)
    return []
