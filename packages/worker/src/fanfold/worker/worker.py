"""The base class of what runs on a rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fanfold.dispatch import Dispatch, Execute, register
from fanfold.worker.errors import MeshError
from fanfold.worker.rank import RankInfo, current_rank, settle_visible_devices

_MESH_RANKS = "_fanfold_mesh_ranks"


@dataclass(frozen=True)
class MeshRank:
    """What one rank said about one mesh: which data-parallel rank it is, and whether its results are collected."""

    dp_rank: int
    is_collect: bool


class Worker:
    """What runs on one rank: derive from it, and mark the methods that a driver calls with `@register`.

    The rank environment is set before the class is built and before its module is imported. A class that does not call
    `super().__init__()` works too: who it is, is looked up when it is asked for.
    """

    def __init__(self) -> None:
        settle_visible_devices()
        self._fanfold_rank: RankInfo = current_rank()

    @property
    def rank_info(self) -> RankInfo:
        """Everything this rank knows about itself."""
        return self.__dict__.get("_fanfold_rank") or current_rank()

    @property
    def rank(self) -> int:
        """Number of this rank in its group, from 0."""
        return self.rank_info.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the group."""
        return self.rank_info.world_size

    def get_master_addr_port(self) -> tuple[str, str]:
        """Return address and port of the group's rendezvous."""
        return self.rank_info.master_addr, str(self.rank_info.master_port)

    def register_mesh_rank(self, mesh: str, dp_rank: int, *, collect: bool = True) -> None:
        """Say which data-parallel rank this rank is in a mesh, and whether its results are collected.

        Args:
            mesh: Name of the mesh, as `make_nd_compute_dataproto_dispatch_fn(mesh_name=...)` names it.
            dp_rank: Which share of the rows this rank gets; ranks with the same number get the same rows.
            collect: Whether the results of this rank go back to the driver.

        Raises:
            MeshError: This rank has said it before, or `dp_rank` is negative.
        """
        known: dict[str, MeshRank] = self.__dict__.setdefault(_MESH_RANKS, {})
        if mesh in known:
            raise MeshError(f"{self._place()} registers mesh {mesh!r} twice: {known[mesh]}, then dp_rank={dp_rank}, collect={collect}")
        if dp_rank < 0:
            raise MeshError(f"{self._place()} registers mesh {mesh!r} with dp_rank={dp_rank}; it must be 0 or more")
        known[mesh] = MeshRank(int(dp_rank), bool(collect))

    def _register_dispatch_collect_info(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        self.register_mesh_rank(mesh_name, dp_rank, collect=is_collect)

    def get_dispatch_collect(self) -> dict[str, dict[str, Any]]:
        """Return, as new dictionaries, the data-parallel rank and the collect flag of each mesh."""
        known = registered_meshes(self)
        return {
            "dispatch_dp_rank": {mesh: said.dp_rank for mesh, said in known.items()},
            "collect_dp_rank": {mesh: said.is_collect for mesh, said in known.items()},
        }

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def execute_with_func_generator(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `func(worker, ...)` on each rank with its share of the batches."""
        return func(self, *args, **kwargs)

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def execute_func_rank_zero(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `func(...)` on rank 0 and return its value."""
        return func(*args, **kwargs)

    def _place(self) -> str:
        return f"{type(self).__name__} on rank {self.rank}"


def registered_meshes(worker: Any) -> dict[str, MeshRank]:
    """Return what a worker said about each mesh; nothing for a class that is no `Worker`."""
    return dict(getattr(worker, "__dict__", {}).get(_MESH_RANKS, {}))
