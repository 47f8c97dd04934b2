"""A group of ranks that a driver calls as if it were one object: plan, execute, collect."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from fanfold.dispatch import CallContext, CallPlan, Dispatch, Execute, Mesh, MethodSpec, plan_call
from fanfold.worker.backend import Backend, Request, StartedRank, StartOrder
from fanfold.worker.bind import BoundMethod, bound_methods, unknown_method
from fanfold.worker.calls import Call
from fanfold.worker.errors import GroupUsageError, MeshError
from fanfold.worker.inline import InlineBackend
from fanfold.worker.limits import CALL_LIMIT, START_LIMIT, STOP_LIMIT, Deadline
from fanfold.worker.pool import ResourcePool, as_pool
from fanfold.worker.rank import check_worker_environment
from fanfold.worker.recipe import ClassWithInitArgs
from fanfold.worker.worker import MeshRank, registered_meshes

WorkerT = TypeVar("WorkerT")


class WorkerGroup(Generic[WorkerT]):
    """One worker on each slot of a pool; the methods that its class registers are methods of the group.

    Args:
        resource_pool: Where ranks live: a pool, or a list of processes per node.
        class_with_init: The worker class with the arguments of its constructor, or a class that needs none.
        backend: What runs the ranks; the inline backend unless given.
        name_prefix: First part of the workers' names; unique unless given.
        worker_env: What is in `os.environ` of the workers, besides the rank contract, before their class is imported.
        start_timeout: Seconds until all ranks have built their workers.
        call_timeout: Seconds for one call, where the method itself says nothing else.

    Raises:
        WorkerStartError: A rank could not build its worker; nothing is left running.
        WaitTimeoutError: Not all ranks were ready in time; nothing is left running.
    """

    def __init__(
        self,
        resource_pool: ResourcePool | Sequence[int],
        class_with_init: ClassWithInitArgs | type[WorkerT],
        *,
        backend: Backend | None = None,
        name_prefix: str | None = None,
        worker_env: Mapping[str, str] | None = None,
        start_timeout: float = START_LIMIT,
        call_timeout: float = CALL_LIMIT,
    ) -> None:
        pool, recipe = as_pool(resource_pool), as_recipe(class_with_init)
        prefix = unique_prefix() if name_prefix is None else name_prefix
        order = start_order(pool, recipe, prefix, worker_env or {})
        runs_on: Backend = InlineBackend() if backend is None else backend
        deadline = Deadline(start_timeout, f"the start of {len(order.names)} ranks of {prefix}{recipe.cls.__qualname__}")
        self._adopt(runs_on, runs_on.start(order, deadline), recipe.cls, prefix, call_timeout=call_timeout)
        self.resource_pool: ResourcePool | None = pool

    def _adopt(
        self,
        backend: Backend,
        members: Sequence[StartedRank],
        cls: type,
        prefix: str,
        *,
        call_timeout: float = CALL_LIMIT,
        owned: bool = True,
    ) -> None:
        """Become the group of these ranks; a group that does not own its ranks only lets go of them when closed."""
        self._backend = backend
        self._members = tuple(members)
        self._owned = owned
        self._call_timeout = call_timeout
        self._meshes: dict[str, Mesh] = {}
        self._closed = False
        self.worker_class: type = cls
        self.name_prefix = prefix
        self._methods: dict[str, BoundMethod] = bound_methods(self, cls)
        self.__dict__.update(self._methods)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self._members)

    @property
    def worker_names(self) -> list[str]:
        """Names of the workers, in rank order."""
        return [member.name for member in self._members]

    def mesh(self, name: str) -> Mesh:
        """Return the rank table of a mesh; the ranks are asked once, all together.

        Raises:
            MeshError: No rank registered that mesh, or only some did.
        """
        if name not in self._meshes:
            self._meshes.update(self._ask_for_meshes(name))
        return self._meshes[name]

    def _ask_for_meshes(self, wanted: str) -> dict[str, Mesh]:
        said: list[dict[str, MeshRank]] = self.execute(registered_meshes)
        names = {name for meshes in said for name in meshes}
        if wanted not in names:
            has = f"the meshes of this group are {', '.join(sorted(names))}" if names else "this group has no meshes yet"
            raise MeshError(
                f"no rank of {self!r} registered a mesh named {wanted!r}; {has}. A worker says "
                f"self.register_mesh_rank({wanted!r}, dp_rank, collect=...) before the first call that needs it"
            )
        return {name: _mesh(name, said) for name in names if name == wanted or all(name in meshes for meshes in said)}

    def plan(self, spec: MethodSpec, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallPlan:
        """Return what a call would do, without sending anything."""
        return plan_call(spec, function, self, tuple(args), dict(kwargs), owner=self.worker_class.__qualname__)

    def run(self, spec: MethodSpec, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Plan a call, execute it, and collect its results, or return the `Call` where the method does not block."""
        plan = self.plan(spec, function, args, kwargs)
        call = self._submit(plan, _how_to_call(self.worker_class, function), self._limit(spec, plan))
        return call.result() if spec.blocking else call

    def _limit(self, spec: MethodSpec, plan: CallPlan) -> Deadline:
        seconds = self._call_timeout if spec.timeout is None else spec.timeout
        return Deadline(seconds, f"{self.worker_class.__qualname__}.{plan.method} on {len(plan.ranks)} ranks")

    def _submit(self, plan: CallPlan, method: str | Callable[..., Any], deadline: Deadline) -> Call:
        self._check_open(plan.method)
        placed = {piece: self._backend.place(plan.value(piece)) for piece in plan.pieces()}
        members = [self._members[rank] for rank in plan.ranks]
        handles = [self._backend.call(member, self._request(plan, placed, method, member.rank)) for member in members]
        label = f"{self.worker_class.__qualname__}.{plan.method}"
        return Call(handles=handles, members=members, backend=self._backend, plan=plan, label=label, deadline=deadline)

    def _request(self, plan: CallPlan, placed: Mapping[Any, Any], method: str | Callable[..., Any], rank: int) -> Request:
        args, kwargs = plan.call_for(rank)
        return Request(
            method=method,
            args=[placed[piece] for piece in args],
            kwargs={name: placed[piece] for name, piece in kwargs.items()},
            context=CallContext(method=plan.method, rank=rank, world_size=self.world_size, padding=plan.padding(rank)),
            wanted=rank in plan.collected,
        )

    def execute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Run `function(worker, ...)` on every rank and return its values in rank order."""
        return self.run(_EVERY_RANK, function, args, kwargs)  # type: ignore[no-any-return]

    def execute_all(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call any method of the worker class on every rank and return its values in rank order.

        Arguments go whole to every rank; `PerRank([...])` gives each rank its own.
        """
        return self.run(_EVERY_RANK, self._function(method_name), args, kwargs)  # type: ignore[no-any-return]

    execute_all_sync = execute_all

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> Call:
        """Call any method of the worker class on every rank and return the `Call` at once."""
        return self.run(_EVERY_RANK_ASYNC, self._function(method_name), args, kwargs)  # type: ignore[no-any-return]

    def execute_rank_zero(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call any method of the worker class on rank 0 and return its value."""
        return self.run(_RANK_ZERO, self._function(method_name), args, kwargs)

    execute_rank_zero_sync = execute_rank_zero

    def execute_rank_zero_async(self, method_name: str, *args: Any, **kwargs: Any) -> Call:
        """Call any method of the worker class on rank 0 and return the `Call` at once."""
        return self.run(_RANK_ZERO_ASYNC, self._function(method_name), args, kwargs)  # type: ignore[no-any-return]

    def _function(self, method_name: str) -> Callable[..., Any]:
        function = getattr(self.worker_class, method_name, None)
        if not callable(function):
            raise unknown_method(self, method_name, self._methods)
        return function  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the ranks, rank 0 last; a group that does not own its ranks only lets go of them. Closing twice is fine."""
        if not self._closed and self._owned:
            self._backend.stop(self._members, STOP_LIMIT)
        self._closed = True

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise GroupUsageError(f"{self!r} is closed; {method} cannot be called any more")

    def __enter__(self) -> WorkerGroup[WorkerT]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        # Reached for what a group does not have: a typo must say what there is.
        if name.startswith("__") or "_methods" not in self.__dict__:
            raise AttributeError(name)
        raise unknown_method(self, name, self._methods)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._methods})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name_prefix}{self.worker_class.__qualname__}, {self.world_size} ranks>"


_EVERY_RANK = MethodSpec(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.ALL)
_EVERY_RANK_ASYNC = MethodSpec(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.ALL, blocking=False)
_RANK_ZERO = MethodSpec(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
_RANK_ZERO_ASYNC = MethodSpec(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO, blocking=False)


def unique_prefix() -> str:
    """Return a name that no other group has; the user's random state is not touched."""
    return f"group-{os.urandom(4).hex()}-"


def as_recipe(class_with_init: ClassWithInitArgs | type) -> ClassWithInitArgs:
    """Take a class that needs no arguments wherever a recipe is wanted."""
    return class_with_init if isinstance(class_with_init, ClassWithInitArgs) else ClassWithInitArgs(class_with_init)


def start_order(pool: ResourcePool, recipe: ClassWithInitArgs, prefix: str, environment: Mapping[str, str]) -> StartOrder:
    """Say what is to be started: a worker `{prefix}{Class}_{node}:{local rank}` in each slot of the pool."""
    slots = pool.slots()
    if not slots:
        raise GroupUsageError(f"{pool!r} has no processes; a group needs at least one")
    names = [f"{prefix}{recipe.cls.__name__}_{slot.node_rank}:{slot.local_rank}" for slot in slots]
    return StartOrder(prefix, recipe, slots, names, check_worker_environment(environment))


def _how_to_call(cls: type, function: Callable[..., Any]) -> str | Callable[..., Any]:
    name = getattr(function, "__name__", "")
    return name if getattr(cls, name, None) is function else function


def _mesh(name: str, said: Sequence[Mapping[str, MeshRank]]) -> Mesh:
    silent = [rank for rank, meshes in enumerate(said) if name not in meshes]
    if silent:
        raise MeshError(f"mesh {name!r} was registered on some ranks only; missing on ranks {silent}")
    return Mesh.from_dp_ranks(
        name, [meshes[name].dp_rank for meshes in said], [meshes[name].is_collect for meshes in said]
    )
