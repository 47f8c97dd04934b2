"""Memory of the driver, stores that are too small, nodes that are lost with what they held."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
from cluster_state import store_bytes, until
from fanfold.ray import PartLostError, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from plane_workers import Maker, Reader, numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ray.cluster_utils import Cluster

# Five ranks import torch for the first of these tests; on a busy machine that takes minutes.
pytestmark = pytest.mark.timeout(600)

MEGABYTE = 1 << 20
# FANFOLD_PASSED="50 200" lets 50 batches of 200 MB pass by.
TIMES, SIZE = map(int, os.environ.get("FANFOLD_PASSED", "20 64").split())


@contextmanager
def group_of(cls: type, ranks: int, name: str, **where: Any) -> Iterator[RayWorkerGroup[Any]]:
    with (
        RayResourcePool([ranks], cpus_per_process=0.1, **where) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(cls), name_prefix=name, start_timeout=400) as group,
    ):
        yield group


@pytest.fixture(scope="module")
def readers(two_nodes: Cluster) -> Iterator[RayWorkerGroup[Any]]:
    with group_of(Reader, 2, "limited") as group:
        yield group


@pytest.fixture
def doomed(two_nodes: Cluster) -> Iterator[Callable[[], None]]:
    """A node of its own kind, and what ends it."""
    node = two_nodes.add_node(num_cpus=1, resources={"accelerator_type:LOST": 1.0})
    until(lambda: "accelerator_type:LOST" in ray.cluster_resources())
    left = [node]

    def end() -> None:
        if left:
            two_nodes.remove_node(left.pop(), allow_graceful=False)

    yield end
    end()
    until(lambda: "accelerator_type:LOST" not in ray.cluster_resources())


def resident() -> int:
    """Return the bytes of memory that this process has: its own, and what it has mapped and touched."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def test_the_driver_stays_as_small_as_it_is_while_batches_pass_by(readers: RayWorkerGroup[Any]) -> None:
    rows = 8  # in two parts
    width = SIZE * MEGABYTE // rows // 8
    with group_of(Maker, 2, "passing") as makers:
        given, before = numbered(rows), store_bytes()
        readers.total(makers.grow(given, width))
        small = resident()
        for _ in range(TIMES):
            assert readers.total(makers.grow(given, width)) == [[6.0, 4], [22.0, 4]]
            assert resident() < small + 10 * MEGABYTE
            assert store_bytes() < before + 4 * SIZE * MEGABYTE
        gc.collect()
        until(lambda: store_bytes() <= before, 30)


def test_rows_lost_with_their_node_are_named_and_never_wrong(
    doomed: Callable[[], None], readers: RayWorkerGroup[Any]
) -> None:
    with group_of(Maker, 1, "far", accelerator_type="LOST") as far:
        lost, small = far.grow(numbered(4), 20_000), far.same(numbered(4))
        assert len(lost) == len(small) == 4
        doomed()
        with pytest.raises(PartLostError, match=r"the result of Maker\.grow from rank 0 \(farMaker_0:0.*call again"):
            readers.total(lost)
        with pytest.raises(PartLostError, match=r"the result of Maker\.grow from rank 0"):
            lost.get()
        assert readers.total(small) == [[1.0, 2], [5.0, 2]]  # it had come with its header


TOO_SMALL = """
import json, os, sys, tempfile
import ray
from fanfold.ray import *
from plane_workers import *
for tries_left in reversed(range(4)):  # Ray gives a node half a minute, which is too little on a busy machine
    try:
        ray.init(address="local", num_cpus=4, include_dashboard=False, namespace="fanfold", log_to_driver=False,
                 logging_level="ERROR", object_store_memory=80 * 1024 * 1024)
        break
    except Exception:
        if not tries_left:
            raise
def group(cls):
    pool = RayResourcePool([2], cpus_per_process=0.1)
    return RayWorkerGroup(pool, RayClassWithInitArgs(cls), start_timeout=400)
makers, readers = group(Maker), group(Reader)
future = makers.grow(numbered(8), 1 << 20)
found = [len(future), readers.total(future)]
batch = numbered(8, 1 << 20)
found.append(readers.total(batch))
found.append(float(readers.read(batch)["wide"].sum()) == float(batch["wide"].sum()))
print("said " + json.dumps(found))
"""


def test_a_batch_larger_than_the_object_store_arrives_all_the_same() -> None:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TOO_SMALL)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (said,) = [json.loads(line.removeprefix("said ")) for line in done.stdout.splitlines() if line.startswith("said ")]
    assert said == [8, [[6.0, 4], [22.0, 4]], [[6.0, 4], [22.0, 4]], True]
