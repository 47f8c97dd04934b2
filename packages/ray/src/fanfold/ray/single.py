"""One actor of a recipe, without a group: in a bundle, or beside another actor on the devices of that one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fanfold.ray.actors import Birth, rank_class
from fanfold.ray.parcels import pack
from fanfold.ray.refs import awaited
from fanfold.worker import START_LIMIT, RankInfo

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanfold.ray.refs import Actor
    from fanfold.worker import ClassWithInitArgs

    from ray.util.placement_group import PlacementGroup

_PLACE_LIMIT = 60.0  # seconds for an actor to say where it is: it may be in the middle of a call


def actor_in_bundle(
    recipe: ClassWithInitArgs, options: Mapping[str, Any], group: PlacementGroup, bundle_index: int, num_gpus: float
) -> Actor:
    """Start the worker of a recipe as an actor in a bundle, and return its handle when it is built."""
    place = PlacementGroupSchedulingStrategy(group, bundle_index)
    return _started(recipe, {"num_cpus": 0, **options, "scheduling_strategy": place, "num_gpus": num_gpus}, {})


def actor_beside(recipe: ClassWithInitArgs, options: Mapping[str, Any], other: Actor) -> Actor:
    """Start the worker of a recipe on the node of another actor; it sees that one's devices, and takes none for itself.

    Raises:
        RayActorError: The other actor is gone.
        WaitTimeoutError: It does not say where it is.
    """
    asked = other.__ray_call__.remote(_whereabouts)
    node, devices = awaited(asked, _PLACE_LIMIT, "asking an actor for its node", repr(other))
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    return _started(recipe, {"num_cpus": 0, **options, "scheduling_strategy": place, "num_gpus": 0}, devices)


def _whereabouts(_: Any) -> tuple[str, dict[str, str]]:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
    return ray.get_runtime_context().get_node_id(), {name: os.environ[name] for name in names if name in os.environ}


def _started(recipe: ClassWithInitArgs, options: Mapping[str, Any], environment: Mapping[str, str]) -> Actor:
    actor_class: Any = ray.remote(rank_class(recipe.cls))
    actor = actor_class.options(**options).remote()
    birth = Birth(RankInfo(rank=0, world_size=1, backend="ray"), environment, os.urandom(16).hex())
    parcel = pack(recipe, f"{recipe!r} with its constructor's arguments")
    try:
        started = actor.fanfold_start.remote(birth, parcel, actor.fanfold_rendezvous.remote(None))
        awaited(started, START_LIMIT, f"the start of {recipe!r}", repr(actor))
    except BaseException:
        ray.kill(actor)
        raise
    return actor
