"""Where ranks sit, and how many groups share a place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.worker import Slot

    from ray.util.placement_group import PlacementGroup


@dataclass(frozen=True)
class BundlePlace:
    """Where one rank of a pool sits.

    Attributes:
        rank: Number in the pool, from 0.
        slot: The same place as the pool numbers it.
        placement_group: The placement group that holds its bundle.
        bundle_index: Number of the bundle in that placement group.
        node_id: Ray's id of the node.
        address: Address of the node.
    """

    rank: int
    slot: Slot
    placement_group: PlacementGroup = field(repr=False)
    bundle_index: int
    node_id: str
    address: str


@dataclass(frozen=True)
class RankPlacement:
    """Where one rank of a group runs.

    Attributes:
        rank: Number in the group.
        name: Name of its worker.
        pid: Its process.
        node_id: Ray's id of its node.
        address: Address of its node.
        gpu_ids: The GPUs that Ray gave it, as Ray numbers them on the node.
        placement_group: The placement group that holds its bundle; None where it sits in none.
        bundle_index: Number of its bundle there; None where it is not known.
        generation: How often it has been started anew.
    """

    rank: int
    name: str
    pid: int
    node_id: str
    address: str
    gpu_ids: tuple[str, ...]
    placement_group: PlacementGroup | None = field(repr=False)
    bundle_index: int | None
    generation: int = 0


class Seats:
    """How many groups of this process live in each bundle; one count for all pools that share bundles."""

    def __init__(self) -> None:
        self._taken: dict[str, Counter[int]] = {}

    def taken(self, place: BundlePlace) -> int:
        """Say how many groups live in a bundle."""
        return self._taken.get(place.placement_group.id.hex(), Counter())[place.bundle_index]

    def take(self, places: Sequence[BundlePlace]) -> None:
        """Note that a group has moved in."""
        for place in places:
            self._taken.setdefault(place.placement_group.id.hex(), Counter())[place.bundle_index] += 1

    def give_back(self, places: Sequence[BundlePlace]) -> None:
        """Note that a group has moved out."""
        for place in places:
            if self.taken(place) > 0:
                self._taken[place.placement_group.id.hex()][place.bundle_index] -= 1

    def any_in(self, groups: Sequence[PlacementGroup]) -> bool:
        """Say whether a group lives in any of these placement groups."""
        return any(sum(self._taken.get(group.id.hex(), Counter()).values()) > 0 for group in groups)

    def forget(self, groups: Sequence[PlacementGroup]) -> None:
        """Note that these placement groups are gone."""
        for group in groups:
            self._taken.pop(group.id.hex(), None)


SEATS = Seats()
