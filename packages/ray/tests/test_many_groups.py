"""Groups that start at the same time on one node meet at places of their own.

`FANFOLD_MANY_GROUPS` says how many.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fanfold.ray import RayResourcePool, RayWorkerGroup
from sample_workers import Plain

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

GROUPS = int(os.environ.get("FANFOLD_MANY_GROUPS", "6"))


def bind_as_torch_does(worker: Any) -> int:
    """Bind and listen at the meeting point, past Python's audit hooks, and return the port."""
    import ctypes  # noqa: PLC0415  # runs on the ranks, which have none of this module
    import socket  # noqa: PLC0415
    import sys  # noqa: PLC0415

    port = int(worker.get_master_addr_port()[1])
    libc = ctypes.CDLL(None)
    worker.kept = socket.socket()
    worker.kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place = socket.AF_INET.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") + bytes(12)
    assert libc.bind(worker.kept.fileno(), place, len(place)) == 0
    assert libc.listen(worker.kept.fileno(), 1) == 0
    return port


def test_groups_that_start_at_once_have_ports_of_their_own(cluster: Cluster) -> None:
    with RayResourcePool([1], cpus_per_process=0.5, max_colocate_count=GROUPS) as pool:
        pool.get_placement_groups()

        def started(_: int) -> RayWorkerGroup[Any]:
            return RayWorkerGroup(pool, Plain)

        with ThreadPoolExecutor(GROUPS) as threads:
            groups = list(threads.map(started, range(GROUPS)))
        ports = [group.execute(bind_as_torch_does)[0] for group in groups]
        assert len(set(ports)) == GROUPS
        with ThreadPoolExecutor(GROUPS) as threads:
            list(threads.map(lambda group: group.close(), groups))
