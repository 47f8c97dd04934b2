"""When a list stands for one item per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.dispatch.rules import Unmarked
    from fanfold.dispatch.signature import Argument


def is_list(value: Any) -> bool:
    """True for lists and plain tuples; a named tuple or a tensor's shape is one value, not one item per rank."""
    return isinstance(value, list) or type(value) is tuple


def lists_scatter(label: str, unmarked: Unmarked, arguments: Sequence[Argument]) -> bool:
    """Whether lists without a mark give item i to rank i. None counts as absent; arguments with marks do not count.

    Raises:
        ArgumentError: lists and other values in one call, so that it is not clear what the lists mean.
    """
    if unmarked != "lists_or_whole":
        return unmarked == "lists"
    counted = [argument for argument in arguments if argument.mark is None and argument.value is not None]
    lists = [argument.name for argument in counted if is_list(argument.value)]
    others = [argument.name for argument in counted if not is_list(argument.value)]
    if lists and others:
        raise ArgumentError(
            f"{label}: got lists ({', '.join(lists)}) and other values ({', '.join(others)}) in one call, expected all "
            "lists or none; say PerRank(x) for one item per rank, or Replicate(x) for the whole list to every rank"
        )
    return bool(lists)
