"""Ray's references as this package's annotations name them, and how to wait for a single one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from fanfold.worker import WaitTimeoutError

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError

if TYPE_CHECKING:
    Actor: TypeAlias = Any  # Ray's own annotations say that no attribute of a handle can be had
    Ref: TypeAlias = ray.ObjectRef[Any]
else:  # neither can be subscripted in the oldest Ray that this package works with
    Actor, Ref = ActorHandle, ray.ObjectRef


def value_of(reference: Ref, limit: float) -> Any:
    """Return the value of one reference, or raise what Ray raises, `GetTimeoutError` after `limit` seconds too."""
    return ray.get(reference, timeout=limit)


def awaited(reference: Ref, limit: float, what: str, missing: str = "") -> Any:
    """Return the value of one reference that a user waits for.

    Args:
        reference: What it is a reference to is finished some day.
        limit: Seconds to wait for that.
        what: What is being done, for the error.
        missing: Who has to do it.

    Raises:
        WaitTimeoutError: It was not over in time.
    """
    try:
        return value_of(reference, limit)
    except GetTimeoutError as error:
        raise WaitTimeoutError(what, limit, missing) from error
