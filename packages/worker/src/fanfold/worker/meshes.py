"""The rank tables of a group: what its ranks said about meshes, asked once and put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanfold.dispatch import Mesh, MeshError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.worker.worker import MeshRank


def mesh_from(said: Sequence[Mapping[str, MeshRank]], wanted: str, group: str) -> Mesh:
    """Put together what each rank said about one mesh.

    Args:
        said: [W] by rank, what it registered.
        wanted: The mesh that is needed.
        group: The group's name for people.

    Raises:
        MeshError: No rank registered the mesh, or only some did, or they contradict each other.
    """
    names = {name for meshes in said for name in meshes}
    if wanted not in names:
        has = f"the meshes of this group are {', '.join(sorted(names))}" if names else "this group has no meshes yet"
        raise MeshError(
            f"no rank of {group} registered a mesh named {wanted!r}; {has}. A worker says "
            f"self.register_mesh_rank({wanted!r}, dp_rank, collect=...) before the first call that needs it"
        )
    silent = [rank for rank, meshes in enumerate(said) if wanted not in meshes]
    if silent:
        raise MeshError(f"mesh {wanted!r} was registered on some ranks only; missing on ranks {silent}")
    return Mesh.from_dp_ranks(
        wanted, [meshes[wanted].dp_rank for meshes in said], [meshes[wanted].is_collect for meshes in said]
    )
