"""What the arguments of a group mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.ray.bundles import RankPlacement
from fanfold.ray.discovery import members_by_handle, members_by_name
from fanfold.ray.placement import RayResourcePool
from fanfold.ray.recipe import as_ray_recipe
from fanfold.worker import ClassWithInitArgs, GroupUsageError, StartedRank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.ray.answers import RankAnswer
    from fanfold.ray.refs import Actor


def placement_of(member: StartedRank, answer: RankAnswer, bundle_index: int | None) -> RankPlacement:
    """Say where one rank runs."""
    return RankPlacement(
        rank=member.rank,
        name=member.name,
        pid=answer.pid,
        node_id=answer.node_id,
        address=answer.address,
        gpu_ids=tuple(answer.gpu_ids),
        placement_group=answer.placement_group,
        bundle_index=bundle_index,
        generation=answer.generation,
    )


def existing_members(names: Sequence[str] | None, handles: Sequence[Actor] | None, namespace: str) -> list[StartedRank]:
    """Make ranks of workers that exist.

    Raises:
        GroupUsageError: Neither names nor handles are given, or both contradict each other.
        NoSuchGroupError: A name is not held by any living actor.
    """
    if handles is not None:
        if names is not None and len(names) != len(handles):
            raise GroupUsageError(f"got {len(names)} worker_names for {len(handles)} worker_handles")
        members = members_by_handle(list(handles), names)
    elif names is not None:
        members = members_by_name(list(names), namespace)
    else:
        raise GroupUsageError(
            "a group needs a resource_pool to start workers in, or worker_names or worker_handles to join"
        )
    if not members:
        raise GroupUsageError("a group needs at least one worker")
    return members


def refuse_members_and_pool(names: Sequence[str] | None, handles: Sequence[Actor] | None) -> None:
    """Refuse workers that exist where new ones are to be started.

    Raises:
        GroupUsageError: There are some.
    """
    if names is not None or handles is not None:
        raise GroupUsageError(
            "worker_names and worker_handles are for workers that exist; leave out resource_pool then"
        )


def pool_of(given: RayResourcePool | Sequence[int], *, detached: bool) -> RayResourcePool:
    """Take a pool, or make one of the processes of each node."""
    return given if isinstance(given, RayResourcePool) else RayResourcePool(given, detached=detached)


def recipe_of(ray_cls_with_init: Any) -> ClassWithInitArgs:
    """Take a class or a recipe.

    Raises:
        GroupUsageError: There is none.
    """
    if ray_cls_with_init is None:
        raise GroupUsageError("a group needs its worker class: ray_cls_with_init=RayClassWithInitArgs(MyWorker, ...)")
    return as_ray_recipe(ray_cls_with_init)


def meeting_point(address: str | None, port: int | str | None) -> tuple[str, int] | None:
    """Take the place where the ranks meet, if it is given.

    Raises:
        GroupUsageError: Only half of it is given.
    """
    if (address is None) != (port is None):
        raise GroupUsageError(f"master_addr and master_port go together; got {address!r} and {port!r}")
    return None if address is None or port is None else (address.strip("[]"), int(port))


def uses_gpu(pool: RayResourcePool, use_gpu: bool | None, device_name: str | None) -> bool:
    r"""Say whether the workers take their share of the pool\'s GPUs.

    Raises:
        GroupUsageError: They are to, and the pool has none; or the kind of device is not known here.
    """
    if device_name not in (None, "cpu", "cuda", "gpu"):
        raise GroupUsageError(
            f"device_name is 'cpu' or 'cuda'; got {device_name!r}. Other accelerators are custom resources: "
            "RayClassWithInitArgs.set_additional_resource({'NPU': 1})"
        )
    wanted = False if device_name == "cpu" and use_gpu is None else use_gpu
    if wanted and not pool.wants_gpu():
        raise GroupUsageError(f"the group has use_gpu=True, but {pool!r} has no GPUs; make the pool with use_gpu=True")
    return pool.wants_gpu() if wanted is None else wanted


def visibility(visible_devices: str) -> str:
    """Take which devices ranks see.

    Raises:
        GroupUsageError: It is neither "own" nor "node".
    """
    if visible_devices not in ("own", "node"):
        raise GroupUsageError(f"visible_devices is 'own' or 'node'; got {visible_devices!r}")
    return visible_devices
