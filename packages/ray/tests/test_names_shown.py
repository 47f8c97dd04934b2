"""Under which names Ray's own tools show what groups do."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
import ray
from cluster_state import until
from fanfold.ray import RayResourcePool, RayWorkerGroup
from sample_workers import Plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.cluster_utils import Cluster


@pytest.fixture
def group(cluster: Cluster) -> Iterator[RayWorkerGroup[Any]]:
    with RayResourcePool([1], cpus_per_process=0.5) as pool, RayWorkerGroup(pool, Plain, name_prefix="shown") as group:
        yield group


def test_the_timeline_names_class_and_method(group: RayWorkerGroup[Any]) -> None:
    asked = group.workers[0].__ray_call__.remote(lambda _: __import__("ray").get_runtime_context().get_worker_id())
    worker = ray.get(asked, timeout=30)
    group.add(1)
    until(lambda: "Plain.add" in _names_of(worker), 30.0)
    assert not any("fanfold_call" in name for name in _names_of(worker))


def _names_of(worker: str) -> set[str]:
    # Of this worker alone: the timeline is the cluster's, with what other tests ran.
    return {str(event.get("name")) for event in ray.timeline() if worker in str(event.get("tid"))}


def test_actors_are_listed_under_the_workers_names(group: RayWorkerGroup[Any]) -> None:
    assert {"name": "shownPlain_0:0", "namespace": "fanfold"} in ray.util.list_named_actors(all_namespaces=True)


@pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="the state API is a part of ray[default]")
def test_the_state_api_shows_the_same() -> None:
    from ray.util.state import list_actors, list_tasks  # noqa: PLC0415  # needs ray[default]

    ray.init(address="local", num_cpus=2, include_dashboard=True, log_to_driver=False)
    address = ray.get_runtime_context().gcs_address
    try:
        with RayWorkerGroup([1], Plain, name_prefix="shown") as group:
            group.add(1)
            until(lambda: "Plain.add" in {task.name for task in list_tasks(address=address)}, 60.0)
            assert "shownPlain_0:0" in {actor.name for actor in list_actors(address=address)}
    finally:
        ray.shutdown()
