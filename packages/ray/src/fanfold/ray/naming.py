"""What names tell about a detached group when nothing else is left of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fanfold.ray.cluster import living_placement_groups
from fanfold.ray.names import named_actors

import ray

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


def worker_names_of(group: str, namespace: str) -> list[str]:
    """Return the names of living workers that look like ranks of a group, in rank order."""
    pattern = re.compile(re.escape(group) + r"[A-Za-z_]\w*_(\d+):(\d+)")
    matches = [pattern.fullmatch(name) for where, name in named_actors() if where == namespace]
    found = [match for match in matches if match is not None]
    return [match[0] for match in sorted(found, key=lambda match: (int(match[1]), int(match[2])))]


def pool_name(group: str) -> str:
    """Return the name of a group's own placement groups, before their numbers."""
    return f"{group}.pool"


def pools_of(group: str) -> list[PlacementGroup]:
    """Return the placement groups of this process's namespace that are named after a group."""
    rows = living_placement_groups()
    names = [str(row["name"]) for row in rows if str(row["name"]).startswith(f"{pool_name(group)}:")]
    return [found for name in names if (found := _placement_group(name)) is not None]


def _placement_group(name: str) -> PlacementGroup | None:
    try:
        return ray.util.get_placement_group(name)  # type: ignore[no-any-return]
    except ValueError:  # of another namespace, or just removed
        return None
