"""Sums up a web server's log that is an Arrow table: no torch, no GPU, no learning; the same on any backend."""

import argparse
import json
import sys
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fanfold.dispatch import Dispatch, register
from fanfold.worker import Worker, WorkerGroup


class Accountant(Worker):
    """One rank's share of the work: an Arrow table is divided by rows as it is."""

    @register(Dispatch.DP_COMPUTE_PROTO)
    def by_page(self, log: pa.Table) -> pa.Table:
        """Return requests and bytes of each page, among these rows."""
        return log.group_by("page").aggregate([("bytes", "count"), ("bytes", "sum")])

    @register(Dispatch.DP_COMPUTE_PROTO, merge={"requests": "sum", "failed": "sum", "largest": "max"})
    def totals(self, log: pa.Table) -> dict[str, int]:
        """Return three figures about these rows, merged over the ranks by a rule each."""
        failed, largest = pc.sum(pc.greater_equal(log["status"], 500)), pc.max(log["bytes"])
        return {"requests": log.num_rows, "failed": failed.as_py(), "largest": largest.as_py()}

    @register(Dispatch.ONE_TO_ALL)
    def has_torch(self) -> bool:
        """Say whether torch is loaded on this rank."""
        return "torch" in sys.modules


def make_log(rows: int) -> pa.Table:
    """Make a log; the same one every time."""
    pages = [f"/{number * number % 7}" for number in range(rows)]
    statuses = [500 if number % 97 == 0 else 200 for number in range(rows)]
    return pa.table({"page": pages, "status": statuses, "bytes": [number * 7919 % 50021 for number in range(rows)]})


def make_group(backend: str, ranks: int) -> AbstractContextManager[Any]:
    """Make the group: the only place that knows what the ranks are."""
    if backend != "ray":
        return WorkerGroup([ranks], Accountant, backend=backend)
    from fanfold.ray import RayResourcePool, RayWorkerGroup, connect  # noqa: PLC0415  # the others need no Ray

    connect()
    return RayWorkerGroup(RayResourcePool([ranks], use_gpu=False, cpus_per_process=0.1), Accountant)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["inline", "threads", "processes", "ray"], default="inline")
    chosen, log = parser.parse_args(), make_log(10_001)  # three ranks: 3334, 3334 and 3333 rows
    with make_group(chosen.backend, ranks=3) as group:
        pages = group.by_page(log).group_by("page").aggregate([("bytes_count", "sum"), ("bytes_sum", "sum")])
        report = {"totals": group.totals(log), "pages": pages.sort_by("page").to_pylist()}
        print(json.dumps({**report, "torch": ["torch" in sys.modules, *group.has_torch()]}))
