"""What tests look at in a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import ray
from fanfold.ray.cluster import living_placement_groups
from fanfold.ray.names import named_actors

if TYPE_CHECKING:
    from collections.abc import Callable


def inventory() -> tuple[set[str], set[str]]:
    """Return the names of placement groups and of actors."""
    return {str(row["name"]) for row in living_placement_groups()}, {name for _, name in named_actors()}


def named(prefix: str) -> tuple[list[str], list[str]]:
    """Return the placement groups and the actors whose names begin so."""
    groups, actors = inventory()
    return tuple(sorted(name for name in names if name.startswith(prefix)) for names in (groups, actors))  # type: ignore[return-value]


def until(condition: Callable[[], object], limit: float = 90.0) -> None:
    """Wait for something that has to become true."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{condition} did not become true within {limit} s"
        time.sleep(0.05)


def store_bytes() -> int:
    """Return how many bytes the object stores of all nodes hold, as they last said."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return round(total["object_store_memory"] - free.get("object_store_memory", 0.0))
