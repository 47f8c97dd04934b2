"""The suite that every backend has to pass, over actors on a cluster of two nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from cluster_state import inventory
from fanfold.ray import RayResourcePool, RayWorkerGroup
from fanfold.worker.testing import Ability, Conformance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.cluster_utils import Cluster


class TestRay(Conformance):
    lacks: ClassVar[frozenset[Ability]] = frozenset()

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def on_cluster(cls, two_nodes: Cluster) -> Iterator[None]:
        before = inventory()
        yield
        assert inventory() == before

    @classmethod
    def make_group(cls, pool: Any, recipe: Any, **options: Any) -> RayWorkerGroup[Any]:
        places = RayResourcePool(pool, cpus_per_process=0.1) if isinstance(pool, list) else pool
        try:
            group = RayWorkerGroup(places, recipe, **options)
        except BaseException:
            places.close()
            raise
        group._take_over(places)
        return group
