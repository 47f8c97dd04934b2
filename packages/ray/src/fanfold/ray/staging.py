"""Batches that are put into the object store once and used in many calls."""

from __future__ import annotations

from typing import Any

from fanfold.dispatch import batch_type_of
from fanfold.ray.store import RayStore
from fanfold.worker import GroupUsageError


def stage(batch: Any) -> Any:
    """Put a batch into the object store once, column by column; what comes back stands for it in any number of calls.

    Of a `DataProto` that is a `RemoteBatch`: it knows its rows and columns, can be cut and narrowed without bringing
    anything, and goes when nobody holds it any more, after `free()`, or with this process. Ranks bring only the columns
    that they read.

    Raises:
        NoClusterError: This process is not connected to a cluster.
        GroupUsageError: It is no batch, or of a type that cannot be staged.
        NotPicklableError: A column cannot travel.
    """
    found = batch_type_of(batch)
    if found is None or found.stage is None:
        kind = f"{type(batch).__module__}.{type(batch).__qualname__}"
        raise GroupUsageError(
            f"stage() got a {kind}, which cannot be stored column by column; expected a DataProto, or a type that is "
            "registered with stage=. Use ray.put for any other value, and pass the reference"
        )
    return found.stage(batch, RayStore())
