"""Arithmetic and checks on rank tables: what a Mesh is built from.

Letters: W ranks, A axes.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.errors import MeshError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Coordinate = tuple[int, ...]
Place = tuple[int, Coordinate]


def flattened(name: str, table: Any, depth: int, at: Coordinate = ()) -> Iterator[Place]:
    """Every rank of a nested list with its coordinates.

    Raises:
        MeshError: the nesting does not match the number of axes.
    """
    if depth == 0:
        if not isinstance(table, int):
            raise MeshError(f"mesh {name!r}: got {table!r} at {at}, expected a rank; name an axis per level of nesting")
        yield table, at
        return
    if not isinstance(table, (list, tuple)):
        raise MeshError(f"mesh {name!r}: got {table!r} at {at}, expected a list; name an axis per level of nesting")
    for index, inner in enumerate(table):
        yield from flattened(name, inner, depth - 1, (*at, index))


def grid(sizes: Sequence[int]) -> Iterator[Place]:
    """Ranks 0, 1, ... at the places of a grid, the last axis fastest."""
    return enumerate(product(*map(range, sizes)))


def axes_in_order(name: str, sizes: Mapping[str, int], order: str) -> tuple[str, ...]:
    """The axes of `sizes`, slowest first, as `order` (fastest first, joined by "-") has them.

    Raises:
        MeshError: an axis that `order` lacks or has twice, or a size below 1.
    """
    named = order.split("-")
    unknown = sorted(set(sizes) - set(named))
    if unknown or len(set(named)) != len(named):
        raise MeshError(
            f"mesh {name!r}: got axes {', '.join(sizes)} and order={order!r}, expected each axis once in it"
        )
    for axis, size in sizes.items():
        if size < 1:
            raise MeshError(f"mesh {name!r}: got size {size} for axis {axis!r}, expected at least 1")
    return tuple(axis for axis in reversed(named) if axis in sizes)


def replicas(dp_ranks: Sequence[int], collect: Sequence[bool]) -> Iterator[Place]:
    """Each rank at (data-parallel rank, replica); the collected rank is replica 0."""
    seen = dict.fromkeys(dp_ranks, 0)
    for rank, (dp_rank, collected) in enumerate(zip(dp_ranks, collect, strict=True)):
        seen[dp_rank] += not collected
        yield rank, (dp_rank, 0 if collected else seen[dp_rank])


def numbered(places: Iterable[int]) -> dict[int, int]:
    """Old place -> new place, numbered from 0 in the same order."""
    return {old: new for new, old in enumerate(sorted(set(places)))}


def check_collected(name: str, dp_ranks: Sequence[int], collect: Sequence[bool]) -> None:
    """Refuse flags by which rows would be lost or come back twice.

    Raises:
        MeshError: names the data-parallel rank and the ranks.
    """
    if len(dp_ranks) != len(collect):
        raise MeshError(f"mesh {name!r}: got {len(dp_ranks)} data-parallel ranks and {len(collect)} collect flags")
    collected: dict[int, list[int]] = {dp_rank: [] for dp_rank in sorted(dp_ranks)}
    for rank, (dp_rank, flag) in enumerate(zip(dp_ranks, collect, strict=True)):
        collected[dp_rank] += [rank] * bool(flag)
    for dp_rank, ranks in collected.items():
        if len(ranks) != 1:
            who, harm = (f"ranks {listed(ranks)} are", "come back twice") if ranks else ("no rank is", "be lost")
            raise MeshError(
                f"mesh {name!r}: {who} to be collected for data-parallel rank {dp_rank}, so its rows would {harm}; "
                "say is_collect=True on exactly one rank of each data-parallel rank"
            )


def check_axes(name: str, axes: Sequence[str]) -> None:
    """Refuse an axis named twice.

    Raises:
        MeshError: names the axes.
    """
    if len(set(axes)) != len(axes):
        raise MeshError(f"mesh {name!r}: got axes {', '.join(axes)}, expected each name once")


def check_places(name: str, axes: Sequence[str], ranks: Sequence[int], coordinates: Sequence[Coordinate]) -> None:
    """Refuse ranks that sit in two places or share one, and axes with gaps.

    Raises:
        MeshError: names the ranks, places and axis.
    """
    if not ranks:
        raise MeshError(f"mesh {name!r} has no ranks; give at least one")
    if len(coordinates) != len(ranks) or any(len(at) != len(axes) for at in coordinates):
        raise MeshError(
            f"mesh {name!r}: expected one coordinate per axis ({', '.join(axes)}) for each of {len(ranks)} ranks"
        )
    _check_distinct(name, axes, ranks, coordinates)
    for index, axis in enumerate(axes):
        used = {at[index] for at in coordinates}
        missing = sorted(set(range(max(used) + 1)) - used)
        if missing or min(used) < 0:
            raise MeshError(
                f"mesh {name!r}: places {listed(sorted(used))} of axis {axis!r} are taken and {listed(missing)} are "
                "not, so rows sent there would run nowhere; number the places from 0 without gaps"
            )


def _check_distinct(name: str, axes: Sequence[str], ranks: Sequence[int], coordinates: Sequence[Coordinate]) -> None:
    if list(ranks) != sorted(set(ranks)):
        twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
        fault = (
            f"ranks {listed(twice)} sit in two places" if twice else f"ranks {listed(ranks)} are not in ascending order"
        )
        raise MeshError(f"mesh {name!r}: {fault}; each rank has one place")
    if len(set(coordinates)) == len(coordinates):
        return
    taken: dict[Coordinate, int] = {}
    for rank, at in zip(ranks, coordinates, strict=True):
        if at in taken:
            where = ", ".join(f"{axis}={place}" for axis, place in zip(axes, at, strict=True))
            raise MeshError(
                f"mesh {name!r}: ranks {taken[at]} and {rank} both sit at {where}; name the axis that tells them apart"
            )
        taken[at] = rank


def listed(numbers: Sequence[int], limit: int = 8) -> str:
    """Numbers for a message, cut short when there are many."""
    shown = ", ".join(map(str, numbers[:limit])) or "none"
    return shown + (f", ... ({len(numbers)} in all)" if len(numbers) > limit else "")
