"""What tests look at in a cluster."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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


class Residue(NamedTuple):
    """What a cluster holds of its users' work."""

    placement_groups: frozenset[str]
    actors: frozenset[str]
    store_bytes: int
    processes: frozenset[int]

    def holds_nothing_beyond(self, before: Residue) -> bool:
        return (
            self.placement_groups == before.placement_groups
            and self.actors == before.actors
            and self.store_bytes <= before.store_bytes
            and self.processes <= before.processes
        )


def residue() -> Residue:
    """Return what the cluster holds: names, bytes of all object stores, and processes that are in use."""
    groups, actors = inventory()
    return Residue(frozenset(groups), frozenset(actors), store_bytes(), frozenset(processes_in_use()))


def store_bytes() -> int:
    """Return how many bytes the object stores of all nodes hold, as the nodes report it from time to time."""
    room, free = ray.cluster_resources(), ray.available_resources()
    return int(room["object_store_memory"] - free.get("object_store_memory", 0.0))


def processes_in_use() -> set[int]:
    """Return the processes of this cluster's workers that are somebody's: Ray keeps idle ones, and says so."""
    address = f"--gcs-address={ray.get_runtime_context().gcs_address}"
    titles = dict(_titles())
    raylets = {pid for pid, title in titles.items() if "/raylet" in title and address in title}
    workers = {pid for pid, title in titles.items() if title.startswith("ray::") and not title.startswith("ray::IDLE")}
    return {pid for pid in workers if _parent(pid) in raylets}


def _titles() -> list[tuple[int, str]]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return found


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def lives(pid: int) -> bool:
    """Say whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], object], limit: float = 90.0) -> None:
    """Wait for something that has to become true."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{condition} did not become true within {limit} s"
        time.sleep(0.05)
