"""Calls in great number leave the driver, the ranks and the object store as they were after the first ones.

`FANFOLD_SOAK_CALLS` says how many.
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

from cluster_state import residue, store_bytes, until
from fanfold.ray import RayResourcePool, RayWorkerGroup
from sample_workers import Plain

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

CALLS = int(os.environ.get("FANFOLD_SOAK_CALLS", "600"))
MEGABYTE = 1 << 20
ROOM = 24 * MEGABYTE  # what allocators and Ray's own tables of past tasks may take


def own_bytes(_worker: Any = None) -> int:
    """Return how much memory of its own a process has in use; what it shares with the object store is not in it."""
    from pathlib import Path  # noqa: PLC0415  # runs on the ranks, which have none of this module

    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) << 10


def test_many_calls_take_no_memory(cluster: Cluster) -> None:
    payload = bytearray(MEGABYTE)
    with RayResourcePool([1, 1], cpus_per_process=0.5) as pool, RayWorkerGroup(pool, Plain) as group:

        def some(calls: int) -> None:
            for number in range(calls):
                if number % 50 == 0:
                    assert [len(back) for back in group.identity(payload)] == [MEGABYTE] * 2
                elif number % 50 == 1:
                    assert group.add.options(blocking=False)(0).cancel().keys() == {0, 1}
                elif number % 50 == 2:
                    assert group.later(0.0).result() == [0, 1]
                else:
                    group.add(0)
            group.add(0)

        some(CALLS // 4)
        before = [own_bytes(), *group.execute(own_bytes)]
        held = residue()
        some(CALLS - CALLS // 4)
        gc.collect()
        after = [own_bytes(), *group.execute(own_bytes)]
        grown = [now - then for then, now in zip(before, after, strict=True)]
        print(f"after {CALLS} calls, bytes more than after {CALLS // 4}: driver {grown[0]}, ranks {grown[1:]}")  # noqa: T201
        assert max(grown) < ROOM
        until(lambda: residue().holds_nothing_beyond(held))
    gc.collect()
    until(lambda: store_bytes() <= held.store_bytes)
