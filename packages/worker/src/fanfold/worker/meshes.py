"""The rank tables of a group: what its ranks said about meshes, asked once and put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanfold.dispatch import Mesh
from fanfold.worker.errors import MeshError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.worker.worker import MeshRank


def meshes_from(said: Sequence[Mapping[str, MeshRank]], wanted: str, group: str) -> dict[str, Mesh]:
    """Put together what each rank said.

    Args:
        said: [W] by rank, what it registered.
        wanted: The mesh that is needed; others that are complete come along.
        group: The group's name for people.

    Raises:
        MeshError: No rank registered the wanted mesh, or only some did, or they contradict each other.
    """
    names = {name for meshes in said for name in meshes}
    if wanted not in names:
        has = f"the meshes of this group are {', '.join(sorted(names))}" if names else "this group has no meshes yet"
        raise MeshError(
            f"no rank of {group} registered a mesh named {wanted!r}; {has}. A worker says "
            f"self.register_mesh_rank({wanted!r}, dp_rank, collect=...) before the first call that needs it"
        )
    complete = {name for name in names if all(name in meshes for meshes in said)}
    return {name: _mesh(name, said) for name in complete | {wanted}}


def _mesh(name: str, said: Sequence[Mapping[str, MeshRank]]) -> Mesh:
    silent = [rank for rank, meshes in enumerate(said) if name not in meshes]
    if silent:
        raise MeshError(f"mesh {name!r} was registered on some ranks only; missing on ranks {silent}")
    return Mesh.from_dp_ranks(
        name, [meshes[name].dp_rank for meshes in said], [meshes[name].is_collect for meshes in said]
    )
