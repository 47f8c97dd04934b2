"""The base class of what runs on a rank."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from fanfold.dispatch import Dispatch, Execute, Mesh, MeshError, register
from fanfold.worker.cancelling import cancelled
from fanfold.worker.rank import CONTRACT, RankInfo, current_rank, settle_visible_devices, visible_devices

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping, Sequence

_MESH_RANKS = "_fanfold_mesh_ranks"
_ROLE = "_fanfold_role"
SIBLINGS = "fused_worker_dict"


class MeshRank(NamedTuple):
    """What one rank said about one mesh: which data-parallel rank it is, and whether its results are collected."""

    dp_rank: int
    is_collect: bool


class DispatchCollect(TypedDict):
    """What one rank said about all its meshes, by mesh."""

    dispatch_dp_rank: dict[str, int]
    collect_dp_rank: dict[str, bool]


class Worker:
    """What runs on one rank: derive from it, and mark the methods that a driver calls with `@register`.

    The rank environment is set before the class is built and before its module is imported. A class that does not call
    `super().__init__()` works too: who it is, is looked up when it is asked for.
    """

    fused_worker_attr_name = SIBLINGS

    def __init__(self) -> None:
        settle_visible_devices()
        self._fanfold_rank: RankInfo = replace(current_rank(), visible_devices=visible_devices())

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

    @classmethod
    def check_before_start(cls, world_size: int, arguments: Mapping[str, Any]) -> None:
        """Refuse what this class cannot be built with, where the driver makes the group and before any rank starts.

        Nothing is refused here; override it, and call `super()`'s. It is only a courtesy: the constructor on the ranks
        has the last word.

        Args:
            world_size: Number of ranks in the group.
            arguments: What the constructor is given by keyword, but for what differs from rank to rank.
        """

    @classmethod
    def env_keys(cls) -> list[str]:
        """Return the names of the variables that say who a rank is."""
        return [*CONTRACT, "CUDA_VISIBLE_DEVICES"]

    def get_master_addr_port(self) -> tuple[str, str]:
        """Return address and port of the group's rendezvous."""
        return self.rank_info.master_addr, str(self.rank_info.master_port)

    def get_available_master_addr_port(self) -> tuple[str, str]:
        """Return this node's address and a free port, for a rendezvous of the user's own.

        The port is held for that until it is bound by a server that allows its address to be reused, as torch's does,
        or until the worker ends; so two calls never return the same one.
        """
        from fanfold.worker.ports import HeldPort, own_address  # noqa: PLC0415  # at first use: sockets cost, few need one

        held: list[HeldPort] = self.__dict__.setdefault("_fanfold_ports", [])
        held.append(HeldPort(own_address(seen_from=self.rank_info.master_addr)))
        address, port = held[-1].address
        return address, str(port)

    def get_cuda_visible_devices(self) -> str:
        """Return the devices that this rank may see, as the environment lists them; "not set" where it has no list."""
        devices = visible_devices("cuda")
        return "not set" if devices is None else ",".join(devices)

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger of the worker's class whose records say group, role and rank."""
        logs = importlib.import_module("fanfold.worker.logs")  # at first use: logging costs what this package may
        role = self.__dict__.get(_ROLE, "")
        return logs.rank_logger(type(self), self.rank_info, role)  # type: ignore[no-any-return]

    def cancelled(self) -> bool:
        """Say whether the call that is running here was cancelled, so that its result is not wanted any more."""
        return cancelled()

    def on_start(self) -> None:
        """Is called once all ranks of the group have built their workers, before the group's first call."""

    def on_stop(self) -> None:
        """Is called when the group is closed, before the rank ends; not on ranks that are lost or do not answer."""

    def on_peer_lost(self, ranks: Sequence[int]) -> None:
        """Is called on a rank that is left when others of its group are gone, as soon as no other call runs on it."""

    def register_mesh_rank(self, mesh: str, dp_rank: int, *, collect: bool = True) -> None:
        """Say which data-parallel rank this rank is in a mesh, and whether its results are collected.

        Args:
            mesh: Name of the mesh, as `make_nd_compute_dataproto_dispatch_fn(mesh_name=...)` names it.
            dp_rank: Which share of the rows this rank gets; ranks with the same number get the same rows.
            collect: Whether the results of this rank go back to the driver.

        Raises:
            MeshError: This rank has said it before, or `dp_rank` is no whole number of at least 0, `mesh` no text, or
                `collect` neither true nor false.
        """
        name: object = mesh
        if not isinstance(name, str) or not hasattr(type(dp_rank), "__index__") or collect not in (True, False):
            raise MeshError(
                f"{self._place()} registers {mesh=} with {dp_rank=}, {collect=}; a mesh has a name, a rank a whole "
                "number in it, and its results are collected or not"
            )
        known: dict[str, MeshRank] = self.__dict__.setdefault(_MESH_RANKS, {})
        if mesh in known:
            raise MeshError(
                f"{self._place()} registers mesh {mesh!r} twice: {known[mesh]}, then {dp_rank=}, {collect=}"
            )
        if dp_rank < 0:
            raise MeshError(f"{self._place()} registers mesh {mesh!r} with dp_rank={dp_rank}; it must be 0 or more")
        known[mesh] = MeshRank(int(dp_rank), bool(collect))

    def _register_dispatch_collect_info(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        self.register_mesh_rank(mesh_name, dp_rank, collect=is_collect)

    def register_mesh_from(self, device_mesh: Any, shard: str = "dp", *, name: str | None = None) -> None:
        """Say the same, read off a device mesh: rows are divided along one axis, rank 0 of the others is collected.

        Args:
            device_mesh: Anything shaped like torch's `DeviceMesh`: `.mesh.tolist()` and `.mesh_dim_names`.
            shard: The axis along which rows are divided.
            name: Name of the mesh; that of the axis unless given.

        Raises:
            MeshError: There is no such axis, or this rank is not in the mesh.
        """
        mesh = Mesh.from_device_mesh(name or shard, device_mesh, shard=shard)
        at = mesh.where(self.rank)
        collect = all(place == 0 for axis, place in at.items() if axis != shard)
        self.register_mesh_rank(mesh.name, at[shard], collect=collect)

    def get_dispatch_collect(self) -> DispatchCollect:
        """Return, as new dictionaries, the data-parallel rank and the collect flag of each mesh."""
        known = registered_meshes(self)
        return {
            "dispatch_dp_rank": {mesh: said.dp_rank for mesh, said in known.items()},
            "collect_dp_rank": {mesh: said.is_collect for mesh, said in known.items()},
        }

    def set_dispatch_collect(
        self, mesh_name: str | None = None, *, dispatch_dp_rank: Mapping[str, int], collect_dp_rank: Mapping[str, bool]
    ) -> None:
        """Take over what another worker of this process said about its meshes.

        Args:
            mesh_name: The name to take one mesh over under: the other worker's mesh of that name, or its only one.
                Unless given, all are taken over under their own names.
            dispatch_dp_rank: By mesh, the data-parallel rank.
            collect_dp_rank: By mesh, whether results are collected.

        Raises:
            MeshError: The two disagree about which meshes there are, it is not clear which one is meant, or this worker
                said something else about a mesh of that name.
        """
        if dispatch_dp_rank.keys() != collect_dp_rank.keys():
            raise MeshError(
                f"{self._place()} is told dp ranks of meshes {sorted(dispatch_dp_rank)} and collect flags of "
                f"{sorted(collect_dp_rank)}"
            )
        known = registered_meshes(self)
        for source, name in self._taken_over(mesh_name, list(dispatch_dp_rank)).items():
            said = MeshRank(int(dispatch_dp_rank[source]), bool(collect_dp_rank[source]))
            if known.get(name) != said:
                self.register_mesh_rank(name, said.dp_rank, collect=said.is_collect)

    def _taken_over(self, mesh_name: str | None, there: Sequence[str]) -> dict[str, str]:
        if mesh_name is None:
            return {name: name for name in there}
        if mesh_name not in there and len(there) != 1:
            raise MeshError(
                f"{self._place()} is to take over mesh {mesh_name!r}; the other worker has {sorted(there)}, of which "
                "none has that name and several could be meant"
            )
        return {mesh_name if mesh_name in there else there[0]: mesh_name}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def query_dispatch_info(self, mesh_name: str) -> int:
        """Return this rank's data-parallel rank in a mesh."""
        return self._said_about(mesh_name).dp_rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def query_collect_info(self, mesh_name: str) -> bool:
        """Return whether this rank's results are collected in a mesh."""
        return self._said_about(mesh_name).is_collect

    def _said_about(self, mesh_name: str) -> MeshRank:
        known = registered_meshes(self)
        if mesh_name not in known:
            raise MeshError(
                f"{self._place()} registered no mesh {mesh_name!r}; it registered {sorted(known) or 'none'}"
            )
        return known[mesh_name]

    def get_fused_worker_by_name(self, worker_name: str) -> Any:
        """Return the worker of another role in this process; None where there is no such role."""
        siblings: Mapping[str, Any] = self.__dict__.get(SIBLINGS, {})
        return siblings.get(worker_name)

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


def overrides_hook(cls: type, hook: str) -> bool:
    """Say whether a worker class has a life-cycle method of its own."""
    own = getattr(cls, hook, None)
    return own is not None and own is not getattr(Worker, hook)


def be_sibling(worker: Any, role: str, siblings: Mapping[str, Any]) -> None:
    """Tell a worker, before it is constructed, which role it plays and who the others in its process are."""
    worker.__dict__[_ROLE] = role
    worker.__dict__[SIBLINGS] = siblings
