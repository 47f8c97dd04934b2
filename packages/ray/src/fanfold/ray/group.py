"""Groups of ranks on a cluster."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from fanfold.ray.arguments import (
    existing_members,
    meeting_point,
    pool_of,
    recipe_of,
    refuse_members_and_pool,
    uses_gpu,
    visibility,
)
from fanfold.ray.backend import RayBackend
from fanfold.ray.birth import GroupBirth
from fanfold.ray.cluster import current_namespace, require_cluster
from fanfold.ray.detached import AtHome, Presence, tell_meshes
from fanfold.ray.discovery import (
    ANSWER_LIMIT,
    FoundGroup,
    check_fit,
    class_from,
    find_group,
)
from fanfold.ray.durations import seconds_of
from fanfold.ray.errors import BrokenGroupError, GroupStartingError
from fanfold.ray.hints import note_sources
from fanfold.ray.ledger import CallLedger, current_ledger, phase, recording
from fanfold.ray.manifest import schema_of
from fanfold.ray.placement import RayResourcePool
from fanfold.ray.profiling import nsight_environment
from fanfold.ray.ranks import RanksOnCluster
from fanfold.ray.registry import stop_group
from fanfold.ray.repairs import Action, Decision, FailurePolicy, Repairs, as_policy
from fanfold.ray.uv_run import warn_of_uv_run
from fanfold.worker import (
    CALL_LIMIT,
    START_LIMIT,
    STOP_LIMIT,
    GroupUsageError,
    StartedRank,
)
from fanfold.worker.bind import check_class
from fanfold.worker.group import check_limits, unique_prefix
from fanfold.worker.limits import WARN_AFTER
from fanfold.worker.options import DEFAULTS, CallOptions
from fanfold.worker.typos import refuses_typos

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.dispatch import CallPlan, Mesh, MethodSpec
    from fanfold.ray.answers import RankAnswer
    from fanfold.ray.refs import Actor

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    WorkerT = TypeVarWithDefault("WorkerT", default=Any)  # what a recipe holds is not known to a type checker
else:
    WorkerT = TypeVar("WorkerT")


class RayWorkerGroup(RanksOnCluster[WorkerT]):
    """One worker in each bundle of a pool; the methods that its class registers are methods of the group.

    Args:
        resource_pool: Where ranks live: a `RayResourcePool`, or a list of processes per node.
        ray_cls_with_init: The worker class, plain or decorated by `ray.remote`, with or without its arguments.
        bin_pack: Whether the ranks of one entry of the pool have to share a node.
        name_prefix: Name of the group and first part of its workers' names; unique unless given.
        detached: Whether the group outlives this driver. The pool has to be detached too.
        worker_names: Workers that exist, by name, instead of a pool; the group will not own them.
        worker_handles: Workers that exist, instead of a pool, in the order of ranks; the group will not own them.
        use_gpu: Whether the workers take their share of the pool's GPUs; None: where the pool has any.
        device_name: "cpu" is another way to say `use_gpu=False`.
        visible_devices: "own": a rank sees its own GPU, which is number 0 to it; "node": those of all the group's ranks
            on its node, its own at `LOCAL_RANK`.
        worker_env: What is in `os.environ` of the workers, besides the rank contract, before their module is imported.
        master_addr: Where the ranks meet, where rank 0 is not to choose; with `master_port`.
        master_port: See `master_addr`.
        master_port_range: From which ports of its node rank 0 chooses, the last one excluded.
        namespace: In which namespace the workers' names are; this process's unless given.
        keep_for: After how long without any client a detached group ends itself, in seconds or as "30m"; None: never.
        on_failure: What to do when a call meets ranks that are gone: "raise", "replace", "restart_all", a function, or
            a `FailurePolicy` with limits.
        collectives: Whether ranks are bound to each other, so that one alone cannot be started anew; None: when a rank
            is a member of a torch process group.
        profile_steps: Which steps are to be profiled by Nsight Systems; None: the ranks do not run under it.
        worker_nsight_options: Nsight's options as Ray takes them, such as `{"trace": "cuda,nvtx"}`.
        start_timeout: Seconds until all ranks have built their workers.
        call_timeout: Seconds for one call, where the method itself says nothing else.
        warn_after: Seconds after which a call that is waited for logs where its ranks are; None: never.

    Raises:
        NoClusterError: This process is not connected to a cluster.
        PlacementError: There is no room for the pool.
        LifetimeError: Group and pool would not live equally long.
        NameTakenError: A detached group, or a worker, of that name lives already.
        WorkerStartError: A rank could not build its worker; nothing is left running.
        WaitTimeoutError: Not all ranks were ready in time; nothing is left running.
    """

    @refuses_typos
    def __init__(  # noqa: PLR0913, PLR0917  # names and order that users know
        self,
        resource_pool: RayResourcePool | Sequence[int] | None = None,
        ray_cls_with_init: Any = None,
        bin_pack: bool = True,
        name_prefix: str | None = None,
        detached: bool = False,
        worker_names: Sequence[str] | None = None,
        worker_handles: Sequence[Actor] | None = None,
        *,
        use_gpu: bool | None = None,
        device_name: str | None = None,
        visible_devices: str = "own",
        worker_env: Mapping[str, str] | None = None,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        master_port_range: tuple[int, int] | None = None,
        namespace: str | None = None,
        keep_for: float | str | None = None,
        on_failure: FailurePolicy | Action | Decision = "raise",
        collectives: bool | None = None,
        profile_steps: Sequence[int] | None = None,
        worker_nsight_options: Mapping[str, Any] | None = None,
        start_timeout: float = START_LIMIT,
        call_timeout: float = CALL_LIMIT,
        warn_after: float | None = WARN_AFTER,
    ) -> None:
        require_cluster("a worker group")
        check_limits(start_timeout, call_timeout, warn_after)
        recipe, policy = recipe_of(ray_cls_with_init), as_policy(on_failure)
        runtime_env = nsight_environment(profile_steps, worker_nsight_options)
        where = current_namespace() if namespace is None else namespace
        if resource_pool is None:
            self._join(
                existing_members(worker_names, worker_handles, where), recipe.cls, name_prefix, where, call_timeout
            )
            return
        refuse_members_and_pool(worker_names, worker_handles)
        warn_of_uv_run()
        prefix = unique_prefix() if name_prefix is None else name_prefix
        check_class(recipe.cls, type(self))  # what is wrong with it is said before anything is placed
        pool = pool_of(resource_pool, detached=detached)
        birth = GroupBirth(prefix, where, pool, detached=detached, keep_for=seconds_of(keep_for, "keep_for"))
        with birth.all_or_nothing():
            pool.get_placement_groups("STRICT_PACK" if bin_pack else "PACK", name=birth.pool_name)
            backend = birth.backend(
                master=meeting_point(master_addr, master_port),
                master_port_range=master_port_range,
                use_gpu=uses_gpu(pool, use_gpu, device_name),
                visible_devices=visibility(visible_devices),
                runtime_env=runtime_env,
            )
            super().__init__(
                pool,
                recipe,
                backend=backend,
                name_prefix=prefix,
                worker_env=worker_env,
                start_timeout=start_timeout,
                call_timeout=call_timeout,
                warn_after=warn_after,
            )
            birth.settle(self._members, recipe.cls)
        self._owned = not detached
        self._own_pool: RayResourcePool | None = None
        if pool is not resource_pool and not detached:
            self._take_over(pool)
        self._live(where, birth.custodian, birth.keep_for, birth)
        self._repairs, self._collectives = Repairs(policy), collectives

    def _join(  # noqa: PLR0913, PLR0917
        self,
        members: Sequence[StartedRank],
        cls: type,
        name_prefix: str | None,
        namespace: str,
        call_timeout: float,
        answers: Mapping[int, RankAnswer] | None = None,
    ) -> None:
        backend = RayBackend(None, namespace=namespace, class_name=cls.__qualname__, answers=answers)
        self._adopt(backend, members, cls, name_prefix or "", call_timeout=call_timeout, owned=False)
        self.resource_pool = None
        self._own_pool = None
        self._live(namespace, None, None)

    def _take_over(self, pool: RayResourcePool) -> None:
        """End the pool with the group: when that is closed, or when nobody holds it any more."""
        self._own_pool = pool
        weakref.finalize(self, pool.close).atexit = False

    def _live(
        self, namespace: str, custodian: Actor | None, keep_for: float | None, birth: GroupBirth | None = None
    ) -> None:
        self.namespace = namespace
        self._custodian = custodian
        self._presence = Presence(custodian, keep_for) if custodian is not None and keep_for is not None else None
        self._birth = AtHome(birth)
        self._repairs, self._collectives = Repairs(FailurePolicy()), None

    @classmethod
    def from_detached(  # noqa: PLR0913  # names and order that users know
        cls,
        name_prefix: str | None = None,
        worker_names: Sequence[str] | None = None,
        worker_handles: Sequence[Actor] | None = None,
        ray_cls_with_init: Any = None,
        *,
        namespace: str | None = None,
        force: bool = False,
        call_timeout: float = CALL_LIMIT,
    ) -> RayWorkerGroup[Any]:
        """Attach to workers that exist: by the group's name, by their names, or by their handles.

        The group does not own its workers: closing it only lets go of them.

        Args:
            name_prefix: Name of the group; enough by itself.
            worker_names: Names of the workers in the order of ranks, instead of the group's.
            worker_handles: Handles of the workers in the order of ranks, instead of names.
            ray_cls_with_init: The worker class; needed with names and handles, else only where it cannot be imported.
            namespace: In which namespace the names are; this process's unless given.
            force: Whether to attach although versions or registered methods differ.
            call_timeout: Seconds for one call, where the method itself says nothing else.

        Raises:
            NoClusterError: This process is not connected to a cluster.
            NoSuchGroupError: No such group or worker lives there; says in which namespaces there is one.
            GroupStartingError: The group is not ready.
            BrokenGroupError: Ranks are gone, or versions or methods differ.
        """
        require_cluster("attaching to a group")
        where = current_namespace() if namespace is None else namespace
        group: RayWorkerGroup[Any] = cls.__new__(cls)
        if worker_names is not None or worker_handles is not None:
            members = existing_members(worker_names, worker_handles, where)
            group._join(members, recipe_of(ray_cls_with_init).cls, name_prefix, where, call_timeout)
        elif name_prefix is not None:
            given = None if ray_cls_with_init is None else recipe_of(ray_cls_with_init).cls
            group._attach(
                find_group(name_prefix, where), name_prefix, given, where, force=force, call_timeout=call_timeout
            )
        else:
            raise GroupUsageError("attaching needs the group's name_prefix, or worker_names, or worker_handles")
        return group

    def _attach(  # noqa: PLR0913
        self, found: FoundGroup, name: str, given: type | None, namespace: str, *, force: bool, call_timeout: float
    ) -> None:
        if found.manifest is None:
            if given is None and found.silent:
                raise GroupStartingError(
                    f"group {name!r} is still starting, or its custodian's node is overloaded: it has not answered "
                    f"within {ANSWER_LIMIT:g} s. Try again, or give the class: from_detached(ray_cls_with_init=...)"
                )
            if given is None:
                raise BrokenGroupError(
                    f"the custodian of group {name!r} is gone, and the class of its workers is known to it alone; give "
                    "it: from_detached(..., ray_cls_with_init=...)"
                )
            self._join(found.members, given, name, namespace, call_timeout)
            return
        worker_class = class_from(found.manifest) if given is None else given
        if not force:
            check_fit(found.manifest, worker_class, schema_of(worker_class))
        answers = {record.rank: record.answer for record in found.manifest.ranks}
        self._join(found.members, worker_class, name, namespace, call_timeout, answers)
        self._ranks.meshes.update({role: dict(meshes) for role, meshes in found.manifest.meshes.items()})
        self.resource_pool = RayResourcePool.adopt(
            found.manifest.process_on_nodes,
            found.manifest.placement_groups,
            max_colocate_count=found.manifest.max_colocate_count,
        )
        self._live(namespace, found.custodian, found.manifest.keep_for)

    @property
    def last_call(self) -> CallLedger | None:
        """What the last call of this group, or of a part of it, moved and how long it took; None before the first."""
        return self._backend.last_call

    def run(
        self,
        spec: MethodSpec,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions = DEFAULTS,
    ) -> Any:
        """Plan a call, execute it, and collect its results, or return what stands for them; `last_call` tells of it."""
        with recording(self._label(function), self._backend) as ledger:
            self._backend.last_call = ledger
            return super().run(spec, function, args, kwargs, options)

    def plan(
        self,
        spec: MethodSpec,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions = DEFAULTS,
    ) -> CallPlan:
        """Return what a call would do, without sending anything."""
        with phase("plan"):
            plan = super().plan(spec, function, args, kwargs, options)
        if (ledger := current_ledger()) is not None:
            note_sources(ledger.method, plan.sources)
        return plan

    def mesh(self, name: str) -> Mesh:
        """Return the rank table of a mesh; the ranks are asked once, and later clients of a detached group not at all.

        Raises:
            MeshError: No rank registered that mesh, or only some did.
        """
        known = name in self._meshes
        mesh = super().mesh(name)
        if not known and name in self._meshes and self._custodian is not None:
            tell_meshes(self._custodian, self._ranks.meshes)
        return mesh

    def close(self) -> None:
        """End the ranks, rank 0 last; a detached or attached group, or a part, only lets go. Closing twice is fine."""
        super().close()
        if self._owner is not None:
            return
        if self._presence is not None:
            self._presence.end()
        if self._own_pool is not None and self._owned:  # a copy that travelled here owns neither ranks nor pool
            self._own_pool.close()

    def stop(self, limit: float = STOP_LIMIT) -> None:
        """End the ranks for good, those of a detached group too, and free their names and places.

        Raises:
            GroupUsageError: The group is a part, or was joined from workers of other groups; end those.
            WaitTimeoutError: Ranks were not gone after `limit` seconds.
        """
        if self._owner is not None or (self._custodian is None and not self._owned and not self._closed):
            raise GroupUsageError(f"{self!r} does not own its workers; end the groups that do, or kill them one by one")
        if self._custodian is not None:
            self._owned = True
            self._ranks.close(limit)
            stop_group(self.name_prefix, self.namespace, limit)
        self.close()
