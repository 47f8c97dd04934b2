"""What one call may decide for itself, without touching the method's registration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from fanfold.worker.errors import GroupUsageError
from fanfold.worker.limits import seconds
from fanfold.worker.typos import nearest, refuses_typos
from fanfold.worker.views import whole_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

Uneven = Literal["split", "pad", "error", "skip"]


class CallOptions(NamedTuple):
    """Options of one call; None leaves what the method's registration says.

    Attributes:
        timeout: Seconds for this call.
        blocking: Whether to wait for the result, or return the `Call`.
        ranks: The only ranks that run it.
        uneven: What becomes of rows that do not divide evenly.
    """

    timeout: float | None = None
    blocking: bool | None = None
    ranks: tuple[int, ...] | None = None
    uneven: Uneven | None = None

    @refuses_typos
    def but(
        self,
        *,
        timeout: float | None = None,
        blocking: bool | None = None,
        ranks: Sequence[int] | None = None,
        uneven: Uneven | None = None,
    ) -> CallOptions:
        """Return options of which these are changed.

        Raises:
            GroupUsageError: A value that the option cannot have.
        """
        given: dict[str, Any] = {
            "timeout": None if timeout is None else seconds(timeout, "timeout"),
            "blocking": None if blocking is None else _switch(blocking),
            "ranks": None if ranks is None else tuple(whole_numbers(ranks)),
            "uneven": None if uneven is None else _way(uneven),
        }
        return self._replace(**{name: value for name, value in given.items() if value is not None})


def _switch(blocking: Any) -> bool:
    if blocking not in (True, False):
        raise GroupUsageError(f"blocking is True or False; got {blocking!r}")
    return bool(blocking)


def _way(uneven: Any) -> Uneven:
    ways: tuple[Uneven, ...] = get_args(Uneven)
    for way in ways:
        if way == uneven:
            return way
    near = nearest([str(uneven)], ways)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise GroupUsageError(f"uneven is one of {', '.join(map(repr, ways))}; got {uneven!r}{hint}")


DEFAULTS = CallOptions()
