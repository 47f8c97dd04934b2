"""What a group does with a call: plan it, execute it, collect it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from fanfold.dispatch import CallContext, CallPlan, Dispatch, Execute, Mesh, MethodSpec, plan_call
from fanfold.worker.abilities import Keeps
from fanfold.worker.arguments import check_takes_worker, resolved, soonest, warn_of_scattering
from fanfold.worker.backend import Backend, Request, StartedRank
from fanfold.worker.bind import methods_of, unknown_method
from fanfold.worker.calls import Call
from fanfold.worker.errors import GroupUsageError
from fanfold.worker.limits import ASK_LIMIT, CALL_LIMIT, WARN_AFTER, Deadline, seconds
from fanfold.worker.meshes import mesh_from
from fanfold.worker.options import DEFAULTS, CallOptions
from fanfold.worker.promises import may_stay, passed_or_arrived, promise_of
from fanfold.worker.rank import current_rank
from fanfold.worker.ranks import Ranks, close_unheld
from fanfold.worker.roles import RoleCall
from fanfold.worker.stuck import table_of
from fanfold.worker.views import chosen_ranks
from fanfold.worker.worker import registered_meshes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.worker.bind import Method
    from fanfold.worker.pool import ResourcePool

WorkerT = TypeVar("WorkerT")
MethodOrFunction: TypeAlias = "str | Callable[..., Any]"


class CallingGroup(Generic[WorkerT]):
    """Ranks that are called together: all of a group, or a part of them, in one of their roles or as a whole."""

    # All that an instance has: no method of a worker may be called like that either.
    resource_pool: ResourcePool | None
    worker_class: type
    name_prefix: str
    warn_after: float | None
    _ranks: Ranks
    _call_timeout: float
    _role: str
    _called: tuple[int, ...] | None
    _owner: CallingGroup[Any] | None
    _released: bool
    _methods: dict[str, Method]

    def _adopt(  # noqa: PLR0913  # called by keyword, once
        self,
        backend: Backend,
        members: Sequence[StartedRank],
        cls: type,
        prefix: str,
        *,
        call_timeout: float = CALL_LIMIT,
        owned: bool = True,
        warn_after: float | None = WARN_AFTER,
    ) -> None:
        """Become the group of these ranks; a group that does not own its ranks only lets go of them when closed."""
        self._take(Ranks(backend, members, cls, None, owned=owned), cls, prefix, call_timeout, warn_after)

    def _take(self, ranks: Ranks, cls: type, prefix: str, call_timeout: float, warn_after: float | None) -> None:
        self._ranks = ranks
        self._call_timeout = call_timeout
        self._role = ""
        self._called = None
        self._owner = None
        self._released = False
        self.warn_after = warn_after
        self.worker_class = cls
        self.name_prefix = prefix
        self._methods = methods_of(cls, type(self))
        # A group that nobody holds any more ends its ranks; its views hold it, and the interpreter's end is seen to by
        # the ranks themselves.
        weakref.finalize(self, close_unheld, ranks).atexit = False

    @property
    def _backend(self) -> Backend:
        return self._ranks.backend

    @property
    def _members(self) -> tuple[StartedRank, ...]:
        return self._ranks.members

    @property
    def _meshes(self) -> dict[str, Mesh]:
        return self._ranks.meshes.setdefault(self._role, {})

    @property
    def _owned(self) -> bool:
        return self._ranks.owned and self._owner is None

    @_owned.setter
    def _owned(self, owned: bool) -> None:
        self._ranks.owned = owned

    @property
    def _closed(self) -> bool:
        return self._released or self._ranks.closed

    @property
    def _whole(self) -> CallingGroup[Any]:
        return self if self._called is None or self._owner is None else self._owner

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the ranks that this group, or part of one, calls."""
        return tuple(range(len(self._members))) if self._called is None else self._called

    @property
    def world_size(self) -> int:
        """How many ranks this group, or part of one, calls."""
        return len(self._members) if self._called is None else len(self._called)

    def __len__(self) -> int:
        return self.world_size

    @property
    def worker_names(self) -> list[str]:
        """Names of the workers, in rank order."""
        return [self._members[rank].name for rank in self.ranks]

    @property
    def master_address(self) -> str:
        """Address of the ranks' rendezvous."""
        return str(self._rendezvous()[0])

    @property
    def master_port(self) -> str:
        """Port of the ranks' rendezvous."""
        return str(self._rendezvous()[1])

    def _rendezvous(self) -> tuple[str, str]:
        return self._whole.execute(_rendezvous)[0]  # type: ignore[no-any-return]

    def mesh(self, name: str) -> Mesh:
        """Return the rank table of a mesh; the ranks are asked once, all together.

        Raises:
            MeshError: No rank registered that mesh, or only some did.
        """
        whole = self._whole
        if whole is not self:
            return whole.mesh(name).restrict(self.ranks)
        if name not in self._meshes:
            self._meshes[name] = mesh_from(self.execute(registered_meshes), name, repr(self))
        return self._meshes[name]

    def mesh_names(self) -> list[str]:
        """Return the names of the meshes that every rank registered; the ranks are asked."""
        said = self._whole.execute(registered_meshes)
        return [name for name in said[0] if all(name in meshes for meshes in said)]

    def plan(
        self,
        spec: MethodSpec,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions = DEFAULTS,
    ) -> CallPlan:
        """Return what a call would do, without sending anything."""
        called = self._called if options.ranks is None else chosen_ranks(options.ranks, self.ranks, None, {})
        owner = self.worker_class.__qualname__
        return plan_call(
            spec, function, self._whole, tuple(args), dict(kwargs), owner=owner, ranks=called, uneven=options.uneven
        )

    def run(
        self,
        spec: MethodSpec,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions = DEFAULTS,
    ) -> Any:
        """Plan a call, execute it, and collect its results, or return the `Call` where it does not block."""
        self._check_open(function)
        deadline = soonest(self._limit(spec, function, options), args, kwargs)
        if spec.materialize_futures:
            args, kwargs = resolved(args, kwargs, deadline)
        plan = self.plan(spec, function, args, kwargs, options)
        blocks = spec.blocking if options.blocking is None else options.blocking
        stays = not blocks and may_stay(plan, self._backend)
        call = self._submit(plan, spec, function, deadline, stays=stays)
        return call.result() if blocks else self._promise(call)

    def _promise(self, call: Call) -> Any:
        """Return what a call that does not block gives; a backend that stores results may know better."""
        return promise_of(call)

    def _limit(self, spec: MethodSpec, function: Callable[..., Any], options: CallOptions) -> Deadline:
        seconds = next(s for s in (options.timeout, spec.timeout, self._call_timeout) if s is not None)
        return Deadline(seconds, f"{self._label(function)} on {self.world_size} ranks")

    def _label(self, function: Callable[..., Any]) -> str:
        role = f" (role {self._role})" if self._role else ""
        return f"{self.worker_class.__qualname__}.{getattr(function, '__name__', repr(function))}{role}"

    def _submit(
        self,
        plan: CallPlan,
        spec: MethodSpec,
        function: Callable[..., Any],
        deadline: Deadline,
        *,
        stays: bool = False,
    ) -> Call:
        self._ranks.wait_until_free(plan.ranks, deadline)
        placed = self._place(plan, spec, deadline)
        members = [self._members[rank] for rank in plan.ranks]
        method, wanted = self._how_to_call(function), set(plan.collected)
        how = {"readonly": spec.inputs == "readonly", "stays": stays, "apart": spec.apart if stays else ()}
        requests = [self._request(plan, placed, method, rank, {**how, "wanted": rank in wanted}) for rank in plan.ranks]
        made = self._backend.kept_call if stays and isinstance(self._backend, Keeps) else Call
        return made(
            handles=self._send(members, requests),
            members=members,
            backend=self._backend,
            plan=plan,
            label=self._label(function),
            deadline=deadline,
            owner=self,
            after=[call for value in placed.values() for call in getattr(value, "calls", ())],
        )

    def _place(self, plan: CallPlan, spec: MethodSpec, deadline: Deadline) -> dict[Any, Any]:
        pieces, backend = plan.pieces(), self._backend
        values = (self._value(plan, piece, spec, deadline) for piece in pieces)
        together = getattr(backend, "place_all", None)
        placed = [backend.place(value) for value in values] if together is None else together(list(values))
        return dict(zip(pieces, placed, strict=True))

    def _value(self, plan: CallPlan, piece: Any, spec: MethodSpec, deadline: Deadline) -> Any:
        value = plan.value(piece)
        return passed_or_arrived(value, self._backend, deadline) if spec.materialize_futures else value

    def _send(self, members: Sequence[StartedRank], requests: Sequence[Request]) -> Sequence[Any]:
        if self._ranks.call_all is not None:
            handles: Sequence[Any] = self._ranks.call_all(members, requests)
            return handles
        return [self._backend.call(member, request) for member, request in zip(members, requests, strict=True)]

    def _request(
        self,
        plan: CallPlan,
        placed: Mapping[Any, Any],
        method: str | Callable[..., Any],
        rank: int,
        how: Mapping[str, Any],
    ) -> Request:
        args, kwargs = plan.call_for(rank)
        context = CallContext(plan.method, rank, len(self._members), plan.padding(rank))
        return Request(
            method=method,
            args=[placed[piece] for piece in args],
            kwargs={name: placed[piece] for name, piece in kwargs.items()},
            context=context,
            **how,
        )

    def _how_to_call(self, function: Callable[..., Any]) -> str | Callable[..., Any]:
        name = getattr(function, "__name__", "")
        method = name if getattr(self.worker_class, name, None) is function else function
        return RoleCall(self._role, method) if self._role else method

    def execute(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Run `function(worker, ...)` on every rank and return its values in rank order.

        Raises:
            GroupUsageError: It is no function, or one that takes no worker.
        """
        check_takes_worker(function)
        return self.run(_EVERY_RANK, function, args, kwargs)  # type: ignore[no-any-return]

    def execute_all(self, method_name: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call any method of the worker class on every rank and return its values in rank order.

        Arguments go whole to every rank; `PerRank([...])` gives each rank its own.
        """
        return self.execute_all_async(method_name, *args, **kwargs).result()  # type: ignore[no-any-return]

    execute_all_sync = execute_all

    def execute_all_async(self, method_name: str, /, *args: Any, **kwargs: Any) -> Call:
        """Call any method of the worker class on every rank and return the `Call` at once."""
        warn_of_scattering(method_name, self.world_size, args, kwargs)
        return self.run(_EVERY_RANK, self._function(method_name), args, kwargs, _AT_ONCE)  # type: ignore[no-any-return]

    def execute_rank_zero(self, method_name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call any method of the worker class on rank 0 and return its value."""
        return self.run(_RANK_ZERO, self._function(method_name), args, kwargs)

    execute_rank_zero_sync = execute_rank_zero

    def execute_rank_zero_async(self, method_name: str, /, *args: Any, **kwargs: Any) -> Call:
        """Call any method of the worker class on rank 0 and return the `Call` at once."""
        return self.run(_RANK_ZERO, self._function(method_name), args, kwargs, _AT_ONCE)  # type: ignore[no-any-return]

    def _function(self, method_name: str) -> Callable[..., Any]:
        if not isinstance(method_name, str):
            raise GroupUsageError(
                f"a method is called by its name, got {method_name!r}; group.execute(function, ...) runs a function"
            )
        function = getattr(self.worker_class, method_name, None)
        if not callable(function):
            raise unknown_method(self, method_name, self._methods)
        return function  # type: ignore[no-any-return]

    def _check_open(self, function: Callable[..., Any]) -> None:
        if self._closed:
            raise GroupUsageError(f"{self!r} is closed; {self._label(function)} cannot be called any more")
        if self._ranks.bad_news is not None:
            raise self._ranks.bad_news

    def note_ended(self, call: Call) -> None:
        """Know that a call has ended: ranks may still be inside it, others may be gone."""
        if call.inside():
            self._ranks.note_left(call)
        lost = [member.rank for member in call.lost()]
        if lost:
            self._ranks.tell_peers(lost)

    def warn_slow(self, label: str, seconds: float) -> None:
        """Log where the ranks are: a call takes long."""
        from fanfold.worker.logs import logger  # noqa: PLC0415  # at first use: logging costs what this package may

        logger.warning("%s has been running for %.0f s\n%s", label, seconds, self.why_stuck())

    def why_stuck(self, limit: float = ASK_LIMIT) -> str:
        """Return a table of what each rank is running, since when and at which line; asks them all at once.

        Args:
            limit: Seconds to wait for answers; a rank that gives none is in the table with a note.
        """
        limit = seconds(limit, "limit", may_be_zero=True)
        return table_of(self._backend, [self._members[rank] for rank in self.ranks], limit)

    def __repr__(self) -> str:
        part = "" if self._called is None else f" {list(self._called)} of {len(self._members)}"
        role = f".{self._role}" if self._role else ""
        cls = f"{self.name_prefix}{self._ranks.cls.__qualname__}{role}"
        return f"<{type(self).__name__} {cls}, {self.world_size} ranks{part}>"


_EVERY_RANK = MethodSpec(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.ALL)
_RANK_ZERO = MethodSpec(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
_AT_ONCE = CallOptions(blocking=False)


def _rendezvous(_: Any) -> tuple[str, str]:
    info = current_rank()
    return info.master_addr, str(info.master_port)
