"""Using a detached group from another process."""

from __future__ import annotations

from typing import Any

from fanfold.ray.group import RayWorkerGroup


def attach(name: str, namespace: str | None = None, *, force: bool = False) -> RayWorkerGroup[Any]:
    """Attach to a detached group by its name alone; closing what is returned only lets go of it.

    Args:
        name: Name of the group, its `name_prefix`.
        namespace: In which namespace it lives; this process's unless given.
        force: Whether to attach although versions or registered methods differ.

    Raises:
        NoClusterError: This process is not connected to a cluster.
        NoSuchGroupError: No such group lives there; says in which namespaces there is one.
        GroupStartingError: The group is not ready.
        BrokenGroupError: Ranks are gone, its class cannot be imported here, or versions or methods differ.
    """
    return RayWorkerGroup.from_detached(name, namespace=namespace, force=force)
