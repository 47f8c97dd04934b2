"""Where parts of batches come from, so that one that is lost can be named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from fanfold.ray.errors import PartLostError

if TYPE_CHECKING:
    from fanfold.ray.refs import Ref

    from ray.exceptions import ObjectLostError


class HasOrigin(Protocol):
    """A handle that can say where its value comes from."""

    @property
    def origin(self) -> str:
        """Which rank made it, in which call."""


_known: WeakValueDictionary[str, Any] = WeakValueDictionary()


def note_origin(reference: Ref, handle: HasOrigin) -> None:
    """Know for as long as the handle lives what a reference belongs to."""
    _known[reference.hex()] = handle


def lost_part(error: ObjectLostError) -> PartLostError:
    """Say which part is gone, where it came from, and what can be done."""
    known = _known.get(error.object_ref_hex)
    what = "rows that this process does not know" if known is None else known.origin
    reason = type(error).__name__
    why = "the process that owned it has ended" if reason == "OwnerDiedError" else "all nodes that held it are gone"
    return PartLostError(
        f"{what} is gone from the object store (object {error.object_ref_hex}, {reason}): {why}. Rows live as long as "
        "the driver that made the call or staged the batch, on the node of the rank that made them: call again, or "
        "stage the batch again"
    )
