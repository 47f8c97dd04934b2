"""Apply a plan in one process, without any backend: the reference for what a call means."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.context import CallContext, serving
from fanfold.dispatch.errors import ArgumentError, MeshError
from fanfold.dispatch.planning import plan_call
from fanfold.dispatch.spec import specs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanfold.dispatch.mesh import Mesh
    from fanfold.dispatch.plan import CallPlan

    Where = Callable[[dict[str, int]], bool]


class InlineGroup:
    """Workers of one class in this process, worker i being rank i; a group with nothing around it.

    Ranks run one after the other. Arguments and results are copied, as they would be on their way to another process.

    Args:
        workers: [W] one for each rank.
        meshes: the meshes that methods refer to.
        ranks: the only ranks that calls reach; None for all.
    """

    def __init__(
        self, workers: Sequence[object], meshes: Sequence[Mesh] = (), ranks: Sequence[int] | None = None
    ) -> None:
        self.workers = list(workers)
        self._meshes = {mesh.name: mesh for mesh in meshes}
        self._ranks = ranks
        if len({type(worker) for worker in self.workers}) != 1:
            kinds = ", ".join(type(worker).__name__ for worker in self.workers[:8]) or "none"
            raise ArgumentError(f"InlineGroup: got workers {kinds}, expected at least one, all of one class")

    @property
    def world_size(self) -> int:
        """W: how many workers there are."""
        return len(self.workers)

    def mesh(self, name: str) -> Mesh:
        """The mesh of that name.

        Raises:
            MeshError: the group was made without it.
        """
        if name not in self._meshes:
            known = ", ".join(self._meshes) or "none"
            raise MeshError(
                f"there is no mesh {name!r}, there is {known}; give it with InlineGroup(workers, meshes=[...])"
            )
        return self._meshes[name]

    def slice(
        self, which: Sequence[int] | Where | None = None, /, *, mesh: str | None = None, **places: int | Sequence[int]
    ) -> InlineGroup:
        """Some of the ranks, called without the others: `slice([0, 2])`, `slice(dp=0)`, `slice(lambda at: ...)`.

        Args:
            which: numbers of ranks, or a predicate of the places by axis.
            mesh: whose places are meant; needed where the group has several meshes.
            places: by axis, the wanted place or places.

        Raises:
            MeshError: there is no such mesh or axis, or several meshes and none named.
        """
        if callable(which) or places:
            chosen = self._mesh_of_places(mesh).select(which if callable(which) else None, **places)
        else:
            chosen = tuple(range(self.world_size) if which is None else which)
        ranks = chosen if self._ranks is None else [rank for rank in chosen if rank in self._ranks]
        return InlineGroup(self.workers, tuple(self._meshes.values()), ranks)

    def _mesh_of_places(self, name: str | None) -> Mesh:
        if name is None and len(self._meshes) != 1:
            known = ", ".join(self._meshes) or "none"
            raise MeshError(f"slice() by places: got no mesh, there are {known}; say which, slice(..., mesh=...)")
        return self.mesh(name or next(iter(self._meshes)))

    def plan(self, method: str, *args: Any, **kwargs: Any) -> CallPlan:
        """The plan of a call of one of the workers' marked methods."""
        cls = type(self.workers[0])
        specs = specs_of(cls)
        if method not in specs:
            known = ", ".join(specs) or "none"
            raise ArgumentError(
                f"{cls.__name__} has no marked method {method!r}, there are {known}; mark it with @register"
            )
        function = getattr(cls, method)
        return plan_call(specs[method], function, self, args, kwargs, owner=cls.__name__, ranks=self._ranks)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Plan a call, run it on every rank of the plan, collect."""
        plan = self.plan(method, *args, **kwargs)
        results = {rank: self._run(plan, rank) for rank in plan.ranks}
        return plan.collect({rank: results[rank] for rank in plan.collected})

    def _run(self, plan: CallPlan, rank: int) -> Any:
        args, kwargs = copy.deepcopy(plan.arguments(rank))
        with serving(CallContext(plan.method, rank, self.world_size, plan.padding(rank))):
            return copy.deepcopy(_finished(getattr(self.workers[rank], plan.method)(*args, **kwargs)))


def run_inline(
    method: str | Callable[..., Any], workers: Sequence[object] | InlineGroup, /, *args: Any, **kwargs: Any
) -> Any:
    """Call a marked method on workers in this process: exactly what a group of ranks would do and return.

    Generators give a list of what they yield.

    Args:
        method: its name, or the function as it stands in the class.
        workers: worker i is rank i; an InlineGroup where the method needs a mesh.
        args: as of the group's own method.
        kwargs: as of the group's own method.

    Raises:
        FanfoldError: what planning or collecting refuses; the method's own errors come through as they are.
    """
    group = workers if isinstance(workers, InlineGroup) else InlineGroup(workers)
    return group.call(method if isinstance(method, str) else method.__name__, *args, **kwargs)


def _finished(value: Any) -> Any:
    if inspect.isawaitable(value) or inspect.isasyncgen(value):
        import asyncio  # noqa: PLC0415  heavy, and only for asynchronous methods

        return asyncio.run(_awaited(value))
    return list(value) if inspect.isgenerator(value) else value


async def _awaited(value: Any) -> Any:
    return [item async for item in value] if inspect.isasyncgen(value) else await value
