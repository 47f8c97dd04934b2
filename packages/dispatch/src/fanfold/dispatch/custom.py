"""Custom dispatch functions: what they see of a group, and the check of what they return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch.errors import ArgumentError, DivideError
from fanfold.dispatch.lists import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.dispatch.mesh import Mesh
    from fanfold.dispatch.protocols import GroupLike


class GroupSlice:
    """Some ranks of a group as a group of their own, numbered from 0."""

    def __init__(self, group: GroupLike, ranks: Sequence[int]) -> None:
        self._group = group
        self._ranks = tuple(ranks)

    @property
    def world_size(self) -> int:
        """How many ranks the slice has."""
        return len(self._ranks)

    def mesh(self, name: str) -> Mesh:
        """The group's mesh of that name, cut down to the slice."""
        return self._group.mesh(name).restrict(self._ranks).renumbered()


def slice_of(group: GroupLike, ranks: Sequence[int]) -> GroupLike:
    """The group itself when all its ranks are called, else a slice."""
    return group if len(ranks) == group.world_size else GroupSlice(group, ranks)


def custom_lists(
    label: str, dispatch_fn: Callable[..., Any], group: GroupLike, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Sequence[Any], ...], dict[str, Sequence[Any]]]:
    """Call a custom dispatch function and check its answer.

    Raises:
        ArgumentError: it is no pair of args and kwargs.
        DivideError: an argument has not one entry per rank.
    """
    where = f"{label}: dispatch function {getattr(dispatch_fn, '__name__', repr(dispatch_fn))}"
    answer = dispatch_fn(group, *args, **kwargs)
    if not isinstance(answer, tuple) or len(answer) != 2:  # noqa: PLR2004  args and kwargs
        raise ArgumentError(f"{where} returned {type(answer).__name__}, expected a pair (args, kwargs)")
    positional, keyword = tuple(answer[0]), dict(answer[1])
    for name, entries in [*enumerate(positional), *keyword.items()]:
        if not is_list(entries) or len(entries) != group.world_size:
            got = f"a list of {len(entries)}" if is_list(entries) else type(entries).__name__
            raise DivideError(
                f"{where} gave {got} for argument {name}, expected a list of {group.world_size}, one per rank"
            )
    return positional, keyword
