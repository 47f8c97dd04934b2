"""Marks: how one argument travels. On a parameter by `Annotated[Batch, Shard]`, or around a value at the call.

A mark at the call wins over the one on the parameter, which wins over what the method's mode does by default.
Letters: B rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from fanfold.dispatch.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Weights = str | Sequence[float] | Callable[[Any], Sequence[float]]

_NOTHING: Any = object()


class Mark:
    """What Shard, Replicate and PerRank have in common: a value, present only at a call."""

    __slots__ = ("value",)

    def __init__(self, value: Any = _NOTHING) -> None:
        self.value = value

    @property
    def has_value(self) -> bool:
        """True at a call, false on a parameter."""
        return self.value is not _NOTHING

    def __repr__(self) -> str:
        held = f"<{type(self.value).__name__}>" if self.has_value else ""
        return f"{type(self).__name__}({held})"

    def __reduce__(self) -> NoReturn:
        # A mark that reaches a worker stood where planning does not look, so its wish would be ignored in silence.
        raise ArgumentError(
            f"{self!r} was left inside another value; mark the whole argument, or put Replicate around a batch inside "
            "a container that is marked Shard"
        )


class Shard(Mark):
    """Divide by rows: `Annotated[Batch, Shard]`, `Annotated[Batch, Shard("ep")]`, `Shard(batch)`, `Shard(batch, "ep")`.

    In a tuple, list, dict or dataclass every batch is divided and everything else goes whole.

    Args:
        value: at the call, the batch or container; on a parameter the axis may stand in its place.
        axis: an axis of the mode's mesh; the mode's own if not given.
        weights: a column name, a function of the batch, or [B] numbers: rows are dealt out so that each place carries
            nearly the same total, and collected results are back in the caller's order.
    """

    __slots__ = ("axis", "weights")

    def __init__(self, value: Any = _NOTHING, axis: str | None = None, *, weights: Weights | None = None) -> None:
        if isinstance(value, str):
            value, axis = _NOTHING, value
        super().__init__(value)
        self.axis = axis
        self.weights = weights


class Replicate(Mark):
    """Send whole to every rank: `Annotated[Batch, Replicate]` or `Replicate(x)`."""

    __slots__ = ()


class PerRank(Mark):
    """Item i goes to the i-th rank of the call: `Annotated[list[int], PerRank]` or `PerRank([...])`."""

    __slots__ = ()
