"""Ray's references as this package's annotations name them, and the one way to wait for a single one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import ray
from ray.actor import ActorHandle

if TYPE_CHECKING:
    Actor: TypeAlias = Any  # Ray's own annotations say that no attribute of a handle can be had
    Ref: TypeAlias = ray.ObjectRef[Any]
else:  # neither can be subscripted in the oldest Ray that this package works with
    Actor, Ref = ActorHandle, ray.ObjectRef


def value_of(reference: Ref, limit: float) -> Any:
    """Return the value of one reference, or raise what Ray raises, `GetTimeoutError` after `limit` seconds too."""
    return ray.get(reference, timeout=limit)
