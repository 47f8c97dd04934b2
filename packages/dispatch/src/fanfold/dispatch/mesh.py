"""A mesh says where each rank sits on named axes, as a value.

Letters: W ranks, D size of the axis that rows are divided along, A axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fanfold.dispatch.errors import MeshError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Coordinate = tuple[int, ...]


@dataclass(frozen=True)
class Mesh:
    """Ranks at coordinates of named axes; rows are divided along one axis and repeated along the others.

    Attributes:
        name: how methods refer to it, for example "train".
        axes: [A] axis names, slowest first.
        ranks: [W] ranks in ascending order.
        coordinates: [W][A] where each rank sits.
        shard: the axis along which rows are divided unless a mark says otherwise.
        collect_at: [A] the coordinate that results are collected from (ignored on the divided axis).

    Raises:
        MeshError: an axis named twice or unknown, two ranks at one coordinate, a gap along an axis.
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
        self._check_axes()
        self._check_ranks()
        self._check_coordinates()

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
        """Build from nested lists of ranks, one level of nesting per axis: `[[0, 1], [2, 3]]` with axes dp, tp."""
        places = list(_flatten(name, table, len(axes)))
        return cls._from_places(name, tuple(axes), places, shard, collect)

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
        """Build from axis sizes; `order` names the axes from the one whose ranks are neighbours outwards.

        The default order is Megatron's. An axis of `sizes` that `order` does not name is an error; one that `order`
        names and `sizes` does not has size 1 and is left out.
        """
        fastest_first = [axis for axis in order.split("-") if axis in sizes]
        _check_order(name, sizes, fastest_first, order)
        axes = tuple(reversed(fastest_first))
        shape = [sizes[axis] for axis in axes]
        places = [(rank, _unravel(rank, shape)) for rank in range(math.prod(shape))]
        return cls._from_places(name, axes, places, shard, collect)

    @classmethod
    def from_dp_ranks(cls, name: str, dp_ranks: Sequence[int], collect: Sequence[bool]) -> Mesh:
        """Build from what each rank says of itself: its data-parallel rank, and whether its results are collected.

        Args:
            name: the mesh's name.
            dp_ranks: [W] data-parallel rank of rank 0, 1, ...
            collect: [W] true for exactly one rank of each data-parallel rank.

        Raises:
            MeshError: a gap in the data-parallel ranks; none or two collected ranks of one data-parallel rank.
        """
        if len(dp_ranks) != len(collect):
            raise MeshError(
                f"mesh {name!r}: got {len(dp_ranks)} data-parallel ranks and {len(collect)} collect flags; give one of each per rank"
            )
        _check_collectors(name, dp_ranks, collect)
        replicas = dict.fromkeys(dp_ranks, 0)
        places = []
        for rank, (dp_rank, collected) in enumerate(zip(dp_ranks, collect, strict=True)):
            replicas[dp_rank] += not collected
            places.append((rank, (dp_rank, 0 if collected else replicas[dp_rank])))
        return cls._from_places(name, ("dp", "replica"), places, "dp", None)

    @classmethod
    def from_device_mesh(
        cls, name: str, device_mesh: object, *, shard: str = "dp", collect: Mapping[str, int] | None = None
    ) -> Mesh:
        """Build from anything shaped like torch's DeviceMesh: `.mesh.tolist()` and `.mesh_dim_names`."""
        table, axes = getattr(device_mesh, "mesh", None), getattr(device_mesh, "mesh_dim_names", None)
        if not hasattr(table, "tolist") or not axes:
            raise MeshError(
                f"mesh {name!r}: got {type(device_mesh).__name__}, expected a device mesh with .mesh and .mesh_dim_names; "
                "create it with mesh_dim_names=(...)"
            )
        return cls.from_table(name, table.tolist(), axes, shard=shard, collect=collect)

    @classmethod
    def of_world(cls, ranks: Sequence[int], name: str = "world") -> Mesh:
        """The mesh of modes that name none: every rank is a data-parallel rank of its own."""
        return cls(name, ("dp",), tuple(ranks), tuple((index,) for index in range(len(ranks))))

    @classmethod
    def _from_places(
        cls,
        name: str,
        axes: tuple[str, ...],
        places: Iterable[tuple[int, Coordinate]],
        shard: str,
        collect: Mapping[str, int] | None,
    ) -> Mesh:
        ordered = sorted(places)
        ranks, coordinates = tuple(rank for rank, _ in ordered), tuple(place for _, place in ordered)
        return cls(name, axes, ranks, coordinates, shard, _collect_coordinate(name, axes, coordinates, collect or {}))

    def size(self, axis: str | None = None) -> int:
        """D: how many places `axis` has (the divided axis unless named)."""
        index = self._axis(axis)
        return max((place[index] for place in self.coordinates), default=-1) + 1

    def place(self, axis: str | None = None) -> dict[int, int]:
        """Where each rank sits along `axis`: for the divided axis this is its data-parallel rank."""
        index = self._axis(axis)
        return {rank: place[index] for rank, place in zip(self.ranks, self.coordinates, strict=True)}

    def where(self, rank: int) -> dict[str, int]:
        """The coordinates of one rank by axis name."""
        if rank not in self.ranks:
            raise MeshError(f"mesh {self.name!r}: rank {rank} is not in it; it has {_listed(self.ranks)}")
        return dict(zip(self.axes, self.coordinates[self.ranks.index(rank)], strict=True))

    def collectors(self, axis: str | None = None) -> tuple[int, ...]:
        """[D] the rank whose result stands for each place along `axis`, in the order of the axis.

        It is the rank at `collect_at` on all other axes; in a slice that lacks it, the one at the lowest coordinates.
        """
        index = self._axis(axis)
        chosen: dict[int, tuple[bool, Coordinate, int]] = {}
        for rank, place in zip(self.ranks, self.coordinates, strict=True):
            elsewhere = any(a != b for k, (a, b) in enumerate(zip(place, self.collect_at, strict=True)) if k != index)
            candidate = (elsewhere, place, rank)
            if place[index] not in chosen or candidate < chosen[place[index]]:
                chosen[place[index]] = candidate
        return tuple(chosen[shard][2] for shard in sorted(chosen))

    def select(
        self, predicate: Callable[[dict[str, int]], bool] | None = None, /, **coordinates: int | Sequence[int]
    ) -> tuple[int, ...]:
        """The ranks at the given coordinates: `mesh.select(dp=0)`, `mesh.select(pp=[0, 1])`, or by a predicate."""
        wanted = {self._axis(axis): _as_set(value) for axis, value in coordinates.items()}
        return tuple(
            rank
            for rank, place in zip(self.ranks, self.coordinates, strict=True)
            if all(place[index] in values for index, values in wanted.items())
            and (predicate is None or predicate(dict(zip(self.axes, place, strict=True))))
        )

    def restrict(self, ranks: Sequence[int]) -> Mesh:
        """The mesh of a slice: the same axes, with the places that are left numbered anew from 0."""
        if tuple(ranks) == self.ranks:
            return self
        kept = set(ranks)
        places = [(r, c) for r, c in zip(self.ranks, self.coordinates, strict=True) if r in kept]
        renumber = [
            {old: new for new, old in enumerate(sorted({c[k] for _, c in places}))} for k in range(len(self.axes))
        ]
        coordinates = tuple(tuple(renumber[k][x] for k, x in enumerate(c)) for _, c in places)
        collect_at = tuple(renumber[k].get(x, 0) for k, x in enumerate(self.collect_at))
        return Mesh(self.name, self.axes, tuple(r for r, _ in places), coordinates, self.shard, collect_at)

    def check_covers(self, world_size: int) -> None:
        """Refuse to be the mesh of a group that has other ranks.

        Raises:
            MeshError: names the ranks that are missing or too many.
        """
        if self.ranks == tuple(range(world_size)):
            return
        missing, unknown = set(range(world_size)) - set(self.ranks), set(self.ranks) - set(range(world_size))
        parts = [f"ranks {_listed(sorted(missing))} are in no place of it"] * bool(missing)
        parts += [f"it names ranks {_listed(sorted(unknown))} that the group does not have"] * bool(unknown)
        raise MeshError(
            f"mesh {self.name!r} does not cover the group of {world_size} ranks: {'; '.join(parts)}. Let every rank register its place in the mesh"
        )

    def _axis(self, axis: str | None) -> int:
        axis = self.shard if axis is None else axis
        if axis not in self.axes:
            raise MeshError(f"mesh {self.name!r} has no axis {axis!r}; its axes are {', '.join(self.axes)}")
        return self.axes.index(axis)

    def _check_axes(self) -> None:
        if len(set(self.axes)) != len(self.axes):
            raise MeshError(f"mesh {self.name!r}: an axis is named twice in {self.axes}")
        self._axis(None)

    def _check_ranks(self) -> None:
        if not self.ranks:
            raise MeshError(f"mesh {self.name!r} has no ranks; give at least one")
        twice = (
            sorted({rank for rank in self.ranks if self.ranks.count(rank) > 1})
            if len(set(self.ranks)) != len(self.ranks)
            else []
        )
        if twice:
            raise MeshError(f"mesh {self.name!r}: ranks {_listed(twice)} sit in two places; each rank has one")

    def _check_coordinates(self) -> None:
        if len(self.coordinates) != len(self.ranks) or any(len(place) != len(self.axes) for place in self.coordinates):
            raise MeshError(
                f"mesh {self.name!r}: each of the {len(self.ranks)} ranks needs one coordinate per axis of {self.axes}"
            )
        taken: dict[Coordinate, int] = {}
        for rank, place in zip(self.ranks, self.coordinates, strict=True):
            if place in taken:
                where = ", ".join(f"{axis}={x}" for axis, x in zip(self.axes, place, strict=True))
                raise MeshError(
                    f"mesh {self.name!r}: ranks {taken[place]} and {rank} both sit at {where}; add the axis that tells them apart"
                )
            taken[place] = rank
        for index, axis in enumerate(self.axes):
            self._check_gaps(axis, {place[index] for place in self.coordinates})

    def _check_gaps(self, axis: str, used: set[int]) -> None:
        missing = set(range(max(used) + 1)) - used
        if missing or min(used) < 0:
            raise MeshError(
                f"mesh {self.name!r}: along axis {axis!r} places {_listed(sorted(used))} are taken, so {_listed(sorted(missing))} "
                "would receive rows and no rank would run them; number the places from 0 without gaps"
            )


def _collect_coordinate(
    name: str, axes: tuple[str, ...], coordinates: Sequence[Coordinate], collect: Mapping[str, int]
) -> Coordinate:
    for axis in collect:
        if axis not in axes:
            raise MeshError(f"mesh {name!r}: collect= names axis {axis!r}; the axes are {', '.join(axes)}")
    sizes = [max((place[k] for place in coordinates), default=0) + 1 for k in range(len(axes))]
    for axis, size in zip(axes, sizes, strict=True):
        if not -size <= collect.get(axis, 0) < size:
            raise MeshError(
                f"mesh {name!r}: collect= asks for place {collect[axis]} of axis {axis!r}, which has {size}"
            )
    return tuple(collect.get(axis, 0) % size for axis, size in zip(axes, sizes, strict=True))


def _check_collectors(name: str, dp_ranks: Sequence[int], collect: Sequence[bool]) -> None:
    collectors: dict[int, list[int]] = {dp_rank: [] for dp_rank in dp_ranks}
    for rank, (dp_rank, collected) in enumerate(zip(dp_ranks, collect, strict=True)):
        collectors[dp_rank] += [rank] * bool(collected)
    for dp_rank, ranks in sorted(collectors.items()):
        if len(ranks) != 1:
            told = f"ranks {_listed(ranks)} are" if ranks else "no rank is"
            harm = "come back twice" if ranks else "be lost"
            raise MeshError(
                f"mesh {name!r}: {told} to be collected for data-parallel rank {dp_rank}, so its rows would {harm}; "
                "say is_collect=True on exactly one rank of each data-parallel rank"
            )


def _check_order(name: str, sizes: Mapping[str, int], named: Sequence[str], order: str) -> None:
    unknown = set(sizes) - set(named)
    if unknown:
        raise MeshError(
            f"mesh {name!r}: axes {', '.join(sorted(unknown))} are not in order={order!r}; name every axis there once, neighbours first"
        )
    wrong = {axis: size for axis, size in sizes.items() if not isinstance(size, int) or size < 1}
    if wrong:
        raise MeshError(f"mesh {name!r}: got sizes {wrong}, expected whole numbers of at least 1")


def _flatten(name: str, table: object, depth: int, place: Coordinate = ()) -> Iterable[tuple[int, Coordinate]]:
    if depth == 0:
        if not isinstance(table, int):
            raise MeshError(
                f"mesh {name!r}: got {type(table).__name__} at {place}, expected a rank; the table nests deeper than it has axes"
            )
        yield table, place
        return
    if not isinstance(table, (list, tuple)):
        raise MeshError(
            f"mesh {name!r}: got {type(table).__name__} at {place}, expected a list; the table nests less deep than it has axes"
        )
    for index, inner in enumerate(table):
        yield from _flatten(name, inner, depth - 1, (*place, index))


def _unravel(rank: int, shape: Sequence[int]) -> Coordinate:
    place: list[int] = []
    for size in reversed(shape):
        rank, index = divmod(rank, size)
        place.append(index)
    return tuple(reversed(place))


def _as_set(value: int | Sequence[int]) -> set[int]:
    return {value} if isinstance(value, int) else set(value)


def _listed(numbers: Sequence[int], limit: int = 8) -> str:
    shown = ", ".join(map(str, numbers[:limit])) or "none"
    return shown + (f", ... ({len(numbers)} in all)" if len(numbers) > limit else "")
