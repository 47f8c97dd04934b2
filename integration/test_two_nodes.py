"""One rank on each of two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import options
import pytest
import ray
from ray.cluster_utils import Cluster
from test_layouts import SMALL, losses

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    cluster = Cluster()
    for _ in range(2):
        cluster.add_node(num_cpus=1, include_dashboard=False)
    ray.init(address=cluster.address, namespace="fanfold", log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_tensor_parallel_over_two_nodes(two_nodes: Cluster) -> None:
    seen = losses(options.parse([*SMALL, "--tp", "2"]), [1, 1])
    assert len(seen) == 5
    assert seen[-1] < seen[0]
