"""The same seed and the same batches give the same losses in every layout, on one node and on two."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice

import client
import options
import pytest
import ray
import server
from fanfold.megatron import ParallelConfig
from fanfold.ray import RayResourcePool, RayWorkerGroup, connect

pytestmark = pytest.mark.timeout(400)
STEPS = 5
NO_SERVER = {"SERVER_PID": "1", "SERVER_HOST": ""}
SMALL = ["--device", "cpu", "--batch-size", "8", "--seq-length", "64", "--steps", str(STEPS)]


def losses(chosen: argparse.Namespace, nodes: list[int]) -> list[float]:
    layout = ParallelConfig(tensor=chosen.tp, pipeline=chosen.pp, data=chosen.dp)
    share = server.affordable_cpus(layout.world_size)
    with (
        RayResourcePool(nodes, use_gpu=False, cpus_per_process=share) as pool,
        RayWorkerGroup(pool, server.recipe(chosen, layout), worker_env=NO_SERVER) as group,
    ):
        group.init_model()
        assert group.describe()[0]["layout"] == str(layout)
        return client.train(group, islice(client.batches(chosen), STEPS), STEPS)


@pytest.fixture(scope="module")
def connected(ray_address: str) -> Iterator[None]:
    connect(ray_address)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def reference(connected: None) -> list[float]:
    return losses(options.parse([*SMALL, "--tp", "1"]), [1])


@pytest.mark.parametrize(
    "sizes",
    [["--tp", "2"], ["--tp", "1", "--dp", "2"], ["--tp", "1", "--pp", "2"], ["--tp", "2", "--dp", "2"]],
    ids=["tp2", "dp2", "pp2", "tp2-dp2"],
)
def test_every_layout_learns_the_same(sizes: list[str], reference: list[float]) -> None:
    chosen = options.parse([*SMALL, *sizes])
    assert losses(chosen, [chosen.tp * chosen.pp * chosen.dp]) == pytest.approx(reference, abs=1e-4)
    assert reference[-1] < reference[0]
