"""What one call may decide for itself, without touching the method's registration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fanfold.worker.typos import refuses_typos

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
        """Return options of which these are changed."""
        given: dict[str, Any] = {
            "timeout": timeout,
            "blocking": blocking,
            "ranks": None if ranks is None else tuple(ranks),
            "uneven": uneven,
        }
        return self._replace(**{name: value for name, value in given.items() if value is not None})


DEFAULTS = CallOptions()
