"""A mesh says where each rank sits on named axes, as a value.

Letters: W ranks, D size of the axis that rows are divided along, A axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from fanfold.dispatch import rank_tables
from fanfold.dispatch.errors import MeshError
from fanfold.dispatch.rank_tables import Coordinate, Place, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Mesh:
    """Ranks at coordinates of named axes; rows are divided along one axis and repeated along the others.

    Attributes:
        name: how methods refer to it, for example "train".
        axes: [A] axis names.
        ranks: [W] ranks in ascending order.
        coordinates: [W][A] where each rank sits.
        shard: the axis along which rows are divided unless a mark or a mode says otherwise.
        collect_at: [A] the place on each axis that results are collected from; on the divided axis it has no meaning.

    Raises:
        MeshError: an axis named twice or unknown, a rank in two places, two ranks in one, a gap along an axis.
    """

    name: str
    axes: tuple[str, ...]
    ranks: tuple[int, ...]
    coordinates: tuple[Coordinate, ...]
    shard: str = "dp"
    collect_at: Coordinate = ()

    def __post_init__(self) -> None:
        """Check everything once; afterwards it holds."""
        if not self.collect_at:
            object.__setattr__(self, "collect_at", (0,) * len(self.axes))
        rank_tables.check_axes(self.name, self.axes)
        rank_tables.check_places(self.name, self.axes, self.ranks, self.coordinates)
        self.axis(self.shard)

    @classmethod
    def from_table(
        cls,
        name: str,
        table: Sequence[object],
        axes: Sequence[str],
        *,
        shard: str = "dp",
        collect: Mapping[str, int] | None = None,
    ) -> Mesh:
        """Build from nested lists of ranks, one level per axis: `[[0, 1], [2, 3]]` with axes `("dp", "tp")`."""
        return cls._of_places(name, axes, rank_tables.flattened(name, table, len(axes)), shard, collect)

    @classmethod
    def from_sizes(
        cls,
        name: str,
        sizes: Mapping[str, int],
        *,
        order: str = "tp-cp-ep-dp-pp",
        shard: str = "dp",
        collect: Mapping[str, int] | None = None,
    ) -> Mesh:
        """Build from axis sizes; `order` names the axes, the one whose neighbours are neighbouring ranks first.

        The default is Megatron's order. `order` may name axes that `sizes` lacks, never the other way round.
        """
        axes = rank_tables.axes_in_order(name, sizes, order)
        return cls._of_places(name, axes, rank_tables.grid([sizes[axis] for axis in axes]), shard, collect)

    @classmethod
    def from_dp_ranks(cls, name: str, dp_ranks: Sequence[int], collect: Sequence[bool]) -> Mesh:
        """Build from what each rank says of itself: its data-parallel rank, and whether its results are collected.

        Args:
            name: the mesh's name.
            dp_ranks: [W] data-parallel rank of rank 0, 1, ...
            collect: [W] true for exactly one rank of each data-parallel rank.

        Raises:
            MeshError: a gap in the data-parallel ranks; none or two collected ranks for one data-parallel rank.
        """
        rank_tables.check_collected(name, dp_ranks, collect)
        return cls._of_places(name, ("dp", "replica"), rank_tables.replicas(dp_ranks, collect), "dp", None)

    @classmethod
    def from_device_mesh(
        cls, name: str, device_mesh: object, *, shard: str = "dp", collect: Mapping[str, int] | None = None
    ) -> Mesh:
        """Build from anything shaped like torch's DeviceMesh: `.mesh.tolist()` and `.mesh_dim_names`."""
        table, axes = getattr(device_mesh, "mesh", None), getattr(device_mesh, "mesh_dim_names", None)
        if table is None or not hasattr(table, "tolist") or not axes:
            raise MeshError(
                f"mesh {name!r}: got {type(device_mesh).__name__}, expected a device mesh with .mesh and "
                ".mesh_dim_names; create it with mesh_dim_names=(...)"
            )
        return cls.from_table(name, table.tolist(), axes, shard=shard, collect=collect)

    @classmethod
    def of_world(cls, ranks: Sequence[int]) -> Mesh:
        """The mesh of modes that name none: each of `ranks` is a data-parallel rank of its own, in rank order."""
        return _world_mesh(tuple(ranks))

    @classmethod
    def _of_places(
        cls,
        name: str,
        axes: Sequence[str],
        places: Iterable[Place],
        shard: str,
        collect: Mapping[str, int] | None,
    ) -> Mesh:
        ordered = sorted(places)
        mesh = cls(name, tuple(axes), tuple(rank for rank, _ in ordered), tuple(at for _, at in ordered), shard)
        return mesh.along(None, collect)

    def axis(self, name: str | None = None) -> int:
        """The index of an axis, of the divided one unless named.

        Raises:
            MeshError: there is none of that name.
        """
        name = self.shard if name is None else name
        if name not in self.axes:
            raise MeshError(f"mesh {self.name!r} has no axis {name!r}; its axes are {', '.join(self.axes)}")
        return self.axes.index(name)

    def size(self, axis: str | None = None) -> int:
        """D: how many places an axis has, the divided one unless named."""
        index = self.axis(axis)
        return max(at[index] for at in self.coordinates) + 1

    def place(self, axis: str | None = None) -> dict[int, int]:
        """Rank -> where it sits along an axis; along the divided one this is its data-parallel rank."""
        index = self.axis(axis)
        return {rank: at[index] for rank, at in self._at.items()}

    def where(self, rank: int) -> dict[str, int]:
        """The coordinates of one rank by axis name.

        Raises:
            MeshError: the rank is not in the mesh.
        """
        if rank not in self._at:
            raise MeshError(f"mesh {self.name!r}: rank {rank} is not in it; it has ranks {listed(self.ranks)}")
        return dict(zip(self.axes, self._at[rank], strict=True))

    def collectors(self, axis: str | None = None) -> tuple[int, ...]:
        """[D] the rank whose result stands for each place along an axis, in the order of the axis.

        It is the rank at `collect_at` on all other axes; where a slice lacks it, the one at the lowest coordinates.
        """
        index = self.axis(axis)
        chosen = self.collect_at[:index] + self.collect_at[index + 1 :]
        best: dict[int, tuple[bool, Coordinate, int]] = {}
        for rank, at in self._at.items():
            rest = at[:index] + at[index + 1 :]
            candidate = (rest != chosen, rest, rank)
            if at[index] not in best or candidate < best[at[index]]:
                best[at[index]] = candidate
        return tuple(best[place][2] for place in sorted(best))

    def along(self, axis: str | None, collect: Mapping[str, int] | None = None) -> Mesh:
        """The same ranks, divided along `axis` and collected at the given places of other axes (-1 is the last).

        Raises:
            MeshError: an axis or a place that the mesh does not have.
        """
        shard = self.shard if axis is None else self.axes[self.axis(axis)]
        if shard == self.shard and not collect:
            return self
        at = list(self.collect_at)
        for name, place in (collect or {}).items():
            size = self.size(name)
            if not -size <= place < size:
                raise MeshError(f"mesh {self.name!r}: got collect place {place} on axis {name!r}, which has {size}")
            at[self.axis(name)] = place % size
        return replace(self, shard=shard, collect_at=tuple(at))

    def select(
        self, predicate: Callable[[dict[str, int]], bool] | None = None, /, **coordinates: int | Sequence[int]
    ) -> tuple[int, ...]:
        """The ranks at the given places, `mesh.select(dp=0, pp=[0, 1])`, or where a predicate of the places is true."""
        wanted = {self.axis(name): _as_set(places) for name, places in coordinates.items()}
        return tuple(
            rank
            for rank, at in self._at.items()
            if all(at[index] in places for index, places in wanted.items())
            and (predicate is None or predicate(self.where(rank)))
        )

    def restrict(self, ranks: Sequence[int]) -> Mesh:
        """The mesh of a slice: the same axes, the places that are left numbered anew from 0."""
        if tuple(ranks) == self.ranks:
            return self
        kept = {rank: self._at[rank] for rank in sorted(ranks)}
        number = [rank_tables.numbered(at[index] for at in kept.values()) for index in range(len(self.axes))]
        coordinates = tuple(tuple(number[index][x] for index, x in enumerate(at)) for at in kept.values())
        collect_at = tuple(number[index].get(x, 0) for index, x in enumerate(self.collect_at))
        return replace(self, ranks=tuple(kept), coordinates=coordinates, collect_at=collect_at)

    def renumbered(self) -> Mesh:
        """The same places with the ranks numbered from 0 in their order."""
        return replace(self, ranks=tuple(range(len(self.ranks))))

    def check_covers(self, world_size: int) -> None:
        """Refuse to be the mesh of a group that has other ranks.

        Raises:
            MeshError: names the ranks that are missing or too many.
        """
        if self.ranks == tuple(range(world_size)):
            return
        missing, unknown = set(range(world_size)) - set(self.ranks), set(self.ranks) - set(range(world_size))
        lacks = [f"ranks {listed(sorted(missing))} have no place in it"] * bool(missing)
        extra = [f"it names ranks {listed(sorted(unknown))}, which the group does not have"] * bool(unknown)
        raise MeshError(
            f"mesh {self.name!r} does not cover the group of {world_size} ranks: {'; '.join(lacks + extra)}. "
            "Let every rank register its place"
        )

    @cached_property
    def _at(self) -> dict[int, Coordinate]:
        return dict(zip(self.ranks, self.coordinates, strict=True))


@lru_cache(maxsize=64)
def _world_mesh(ranks: tuple[int, ...]) -> Mesh:
    return Mesh("world", ("dp",), ranks, tuple((place,) for place in range(len(ranks))))


def _as_set(places: int | Sequence[int]) -> set[int]:
    return {places} if isinstance(places, int) else set(places)
