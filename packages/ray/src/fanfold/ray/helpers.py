"""Small things that users of such systems reach for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fanfold.worker import GroupUsageError, keeps_all_visible

import ray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.ray.refs import Ref

_TOGETHER = 16  # objects that are put at the same time


def parallel_put(data_list: Sequence[Any], max_workers: int | None = None) -> list[Ref]:
    """Put objects into the object store, several at a time, and return their references in order.

    Raises:
        GroupUsageError: There is nothing to put, or no worker to do it.
    """
    if not data_list:
        raise GroupUsageError("parallel_put needs at least one object")
    workers = min(len(data_list), _TOGETHER) if max_workers is None else max_workers
    if workers < 1:
        raise GroupUsageError(f"max_workers must be at least 1; got {max_workers!r}")
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(ray.put, data_list))


def ray_noset_visible_devices(env_vars: Mapping[str, str]) -> bool:
    """Say whether a switch in these variables keeps Ray from hiding devices, so that a rank sees all of its node."""
    return keeps_all_visible(env_vars)
