"""Which columns travel: the check of `reads=` before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.dispatch.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.dispatch.batches import BatchType


def check_columns(label: str, reads: Sequence[str], batches: Sequence[tuple[Any, BatchType]]) -> None:
    """Refuse columns that no batch of the call has, as far as the batch types can tell.

    Raises:
        ArgumentError: names the columns, and those that are there.
    """
    if not batches or any(map(_cannot_tell, (batch_type for _, batch_type in batches))):
        return
    present = {name for batch, batch_type in batches if batch_type.columns for name in batch_type.columns(batch)}
    absent = [name for name in reads if name not in present]
    if absent:
        raise ArgumentError(
            f"{label}: reads= names columns {', '.join(absent)}, which no batch of this call has; there are "
            f"{', '.join(sorted(map(str, present))) or 'none'}. Nothing was sent"
        )


def _cannot_tell(batch_type: BatchType) -> bool:
    """True where nothing says which columns there are, or where asking would wait for rows that are not here yet."""
    return batch_type.part is not None or (batch_type.select is not None and batch_type.columns is None)
