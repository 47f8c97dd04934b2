"""One cluster of two nodes for the whole session: starting one costs more than most tests."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Before ray is imported, which reads them once.
os.environ.update(
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="disabled",
    # Idle workers for each CPU that Ray believes in would take turns with the tests on the CPUs that there are.
    RAY_prestart_worker_first_driver="0",
    RAY_enable_worker_prestart="0",
    # A node whose raylet was killed is dead after five unanswered calls, which are 3 s apart by default; one that is
    # only slow has 10 s for each of them, as ever.
    RAY_health_check_period_ms="500",
    OMP_NUM_THREADS="1",
    PYTHONPATH=os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])),
)
os.environ.pop("RAY_ADDRESS", None)

import ray
from cluster_state import inventory
from hypothesis import settings
from ray.cluster_utils import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

# The same examples each time; `nox -s deep` looks elsewhere.
settings.register_profile("quick", deadline=None, derandomize=True)
settings.load_profile("quick")

NAMESPACE = "fanfold"
CPUS_PER_NODE = 4


def started_cluster() -> Cluster:
    """Start the cluster; Ray gives a node half a minute, which is too little on a machine with other things to do."""
    head: dict[str, Any] = {"num_cpus": CPUS_PER_NODE, "include_dashboard": False}
    for tries_left in reversed(range(4)):
        cluster = Cluster()
        try:
            cluster.add_node(**head)
            cluster.add_node(num_cpus=CPUS_PER_NODE)
        except Exception:
            cluster.shutdown()
            if not tries_left:
                raise
        else:
            return cluster
    raise AssertionError("unreachable")


@pytest.fixture(scope="session")
def cluster_of_the_session() -> Iterator[Cluster]:
    cluster = started_cluster()
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def two_nodes(cluster_of_the_session: Cluster) -> Iterator[Cluster]:
    """The cluster, and the promise that a file leaves in it what it found, with all that its own fixtures made."""
    before = inventory()
    yield cluster_of_the_session
    assert inventory() == before


@pytest.fixture
def cluster(two_nodes: Cluster) -> Iterator[Cluster]:
    """The cluster, and the promise that a test leaves in it what it found."""
    before = inventory()
    yield two_nodes
    assert inventory() == before


@pytest.fixture
def address(cluster: Cluster) -> str:
    return str(cluster.address)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    # What needs no cluster first: it fails sooner.
    items.sort(key=lambda item: "two_nodes" in getattr(item, "fixturenames", ()))
