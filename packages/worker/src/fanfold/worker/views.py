"""Parts of a group: by numbers, by a slice of them, by coordinates in a mesh, by a predicate on those."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from fanfold.worker.errors import GroupUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.dispatch import Mesh

Numbers: TypeAlias = int | slice
Which: TypeAlias = "int | slice | Sequence[int] | Callable[[dict[str, int]], bool] | None"


def chosen_ranks(
    which: Which, ranks: Sequence[int], mesh: Mesh | None, coordinates: Mapping[str, Any]
) -> tuple[int, ...]:
    """Choose among ranks.

    Args:
        which: A number, a slice or several numbers, counted within `ranks`; a predicate on coordinates; None for all.
        ranks: The ranks that there are.
        mesh: Where they sit, where coordinates are asked for.
        coordinates: By axis, the wanted place or places.

    Raises:
        GroupUsageError: Nothing is left, or a number does not exist.
        MeshError: There is no such axis.
    """
    if mesh is not None:
        predicate = which if callable(which) else None
        there = set(ranks)
        chosen = tuple(rank for rank in mesh.select(predicate, **coordinates) if rank in there)
    else:
        chosen = _by_number(which, ranks)
    if not chosen:
        raise GroupUsageError(
            f"no rank of {list(ranks)} is left by {_said(which, coordinates)}; a part of a group has at least one"
        )
    return chosen


def _by_number(which: Which, ranks: Sequence[int]) -> tuple[int, ...]:
    if which is None:
        return tuple(ranks)
    if isinstance(which, slice):
        return tuple(ranks[which])
    if callable(which):
        raise GroupUsageError("a predicate is given coordinates: say of which mesh, slice(predicate, mesh=...)")
    numbers = whole_numbers(which)
    wrong = [number for number in numbers if not -len(ranks) <= number < len(ranks)]
    if wrong or len({number % len(ranks) for number in numbers}) < len(numbers):
        raise GroupUsageError(
            f"ranks {numbers} are not different numbers of 0 to {len(ranks) - 1}, as this group counts its ranks"
        )
    return tuple(sorted(ranks[number] for number in numbers))


def whole_numbers(which: Any) -> list[int]:
    """Return the number or numbers of ranks that were given.

    Raises:
        GroupUsageError: Something else was given.
    """
    given = [which] if hasattr(type(which), "__index__") else which
    if isinstance(given, (str, bytes)) or not hasattr(type(given), "__iter__"):
        raise GroupUsageError(f"ranks are whole numbers, such as 0, [0, 2] or a slice; got {which!r}")
    numbers = list(given)
    if any(isinstance(number, bool) or not hasattr(type(number), "__index__") for number in numbers):
        raise GroupUsageError(f"ranks are whole numbers, such as 0, [0, 2] or a slice; got {which!r}")
    return [number.__index__() for number in numbers]


def _said(which: Which, coordinates: Mapping[str, Any]) -> str:
    parts = [] if which is None else [repr(which)]
    return ", ".join([*parts, *(f"{axis}={place}" for axis, place in coordinates.items())]) or "everything"
