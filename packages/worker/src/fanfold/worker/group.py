"""A group of ranks that a driver calls as if it were one object; its parts, its roles, its health and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

from fanfold.worker.bind import BoundMethod, check_class, methods_of, unknown_method
from fanfold.worker.calling import CallingGroup
from fanfold.worker.errors import GroupUsageError, NotPicklableError
from fanfold.worker.limits import CALL_LIMIT, START_LIMIT, WARN_AFTER, Deadline, seconds
from fanfold.worker.pool import ResourcePool, as_pool
from fanfold.worker.recipe import ClassWithInitArgs, as_recipe
from fanfold.worker.roles import roles_of
from fanfold.worker.starting import as_backend, in_trouble, renew_ranks, start_order, start_ranks, unique_prefix
from fanfold.worker.typos import refuses_typos
from fanfold.worker.views import Numbers, Which, chosen_ranks, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fanfold.worker.backend import Backend
    from fanfold.worker.health import OnLost

WorkerT = TypeVar("WorkerT")
GroupT = TypeVar("GroupT", bound="WorkerGroup[Any]")

__all__ = ["WorkerGroup", "unique_prefix"]


class WorkerGroup(CallingGroup[WorkerT]):
    """One worker on each slot of a pool; the methods that its class registers are methods of the group.

    Args:
        resource_pool: Where ranks live: a pool, or a list of processes per node.
        class_with_init: The worker class with the arguments of its constructor, or a class that needs none.
        backend: What runs the ranks: "inline", "threads", "processes", or a backend; what `FANFOLD_BACKEND` says, else
            inline, unless given.
        name_prefix: First part of the workers' names; unique unless given.
        worker_env: What is in `os.environ` of the workers, besides the rank contract, before their class is imported.
        start_timeout: Seconds until all ranks have built their workers.
        call_timeout: Seconds for one call, where the method itself says nothing else.
        warn_after: Seconds after which a call that is waited for logs where its ranks are; None: never.

    Raises:
        WorkerStartError: A rank could not build its worker; nothing is left running.
        WaitTimeoutError: Not all ranks were ready in time; nothing is left running.
        MethodNameClashError: The class registers a method that would hide an attribute of the group.
        UnknownOptionError: An option that does not exist, most often misspelt.
    """

    @overload
    def __init__(
        self,
        resource_pool: ResourcePool | Sequence[int],
        class_with_init: type[WorkerT],
        *,
        backend: Backend | str | None = None,
        name_prefix: str | None = None,
        worker_env: Mapping[str, str] | None = None,
        start_timeout: float = START_LIMIT,
        call_timeout: float = CALL_LIMIT,
        warn_after: float | None = WARN_AFTER,
    ) -> None: ...

    @overload
    def __init__(
        self: WorkerGroup[Any],
        resource_pool: ResourcePool | Sequence[int],
        class_with_init: ClassWithInitArgs,
        *,
        backend: Backend | str | None = None,
        name_prefix: str | None = None,
        worker_env: Mapping[str, str] | None = None,
        start_timeout: float = START_LIMIT,
        call_timeout: float = CALL_LIMIT,
        warn_after: float | None = WARN_AFTER,
    ) -> None: ...

    @refuses_typos
    def __init__(  # noqa: PLR0913  # each by keyword
        self,
        resource_pool: ResourcePool | Sequence[int],
        class_with_init: ClassWithInitArgs | type[WorkerT],
        *,
        backend: Backend | str | None = None,
        name_prefix: str | None = None,
        worker_env: Mapping[str, str] | None = None,
        start_timeout: float = START_LIMIT,
        call_timeout: float = CALL_LIMIT,
        warn_after: float | None = WARN_AFTER,
    ) -> None:
        check_limits(start_timeout, call_timeout, warn_after)
        pool, recipe = as_pool(resource_pool), as_recipe(class_with_init)
        prefix = unique_prefix() if name_prefix is None else name_prefix
        check_class(recipe.cls, type(self))  # what is wrong with it is said before anything is started
        order, chosen = start_order(pool, recipe, prefix, worker_env or {}), as_backend(backend)
        deadline = Deadline(
            start_timeout, f"the start of {len(order.names)} ranks of {prefix}{recipe.cls.__qualname__}"
        )
        self._take(start_ranks(chosen, order, deadline), recipe.cls, prefix, call_timeout, warn_after)
        self.resource_pool = pool

    def slice(self, which: Which = None, /, *, mesh: str | None = None, **coordinates: int | Sequence[int]) -> Self:
        """Return a part of the group: the same ranks, called without the others.

        A part never ends its ranks, and keeps the group from being ended as long as somebody holds the part.

        Args:
            which: A number, a slice or several numbers, as this group counts its ranks; or a predicate on coordinates.
            mesh: The mesh whose coordinates are meant; needed where the group has several.
            coordinates: By axis of the mesh, the wanted place or places: `dp=0`, `dp=[0, 1]`.

        Raises:
            GroupUsageError: No rank is left, or a number does not exist.
            MeshError: There is no such mesh or axis.
        """
        table = self._mesh_for(mesh) if mesh is not None or coordinates or callable(which) else None
        return self._part(chosen_ranks(which, self.ranks, table, coordinates))

    def __getitem__(self, which: Numbers) -> Self:
        if not isinstance(which, slice) and hasattr(type(which), "__index__"):
            self._check_number(which.__index__())
        return self._part(chosen_ranks(which, self.ranks, None, {}))

    def _check_number(self, which: int) -> None:
        if not -self.world_size <= which < self.world_size:
            raise IndexError(f"{self!r} has no rank number {which}")

    def __iter__(self) -> Iterator[Self]:
        return (self[number] for number in range(self.world_size))

    def _part(self, called: tuple[int, ...] | None) -> Self:
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__, _called=called, _owner=self._whole)
        return part

    def _mesh_for(self, name: str | None) -> Any:
        whole = self._whole
        names = whole.mesh_names() if name is None else [name]
        if len(names) != 1:
            raise GroupUsageError(
                f"{self!r} has the meshes {', '.join(names) or '(none)'}; say which one: slice(..., mesh=...)"
            )
        return whole.mesh(names[0])

    @property
    def roles(self) -> dict[str, type]:
        """The worker class of each role, by name; empty for a worker class without roles."""
        return {role: recipe.cls for role, recipe in roles_of(self.worker_class).items()}

    def spawn(self, prefix_set: Iterable[str] | None = None) -> dict[str, Self]:
        """Return a group for each role: the same ranks, with that role's methods.

        Args:
            prefix_set: The wanted roles; all unless given.

        Raises:
            GroupUsageError: There is no such role.
        """
        if isinstance(prefix_set, str):
            raise GroupUsageError(f"spawn takes several roles; say spawn({{{prefix_set!r}}}), or group.{prefix_set}")
        return {role: self._as_role(role) for role in (self.roles if prefix_set is None else prefix_set)}

    def fuse(self, prefix_set: Iterable[str] | None = None) -> None:
        """Check that the group has these roles; each is an attribute of it from the start: `group.actor.update(...)`.

        Raises:
            GroupUsageError: There is no such role.
        """
        self.spawn(prefix_set)

    def _as_role(self, role: str) -> Self:
        if role not in self.roles:
            raise GroupUsageError(f"{self!r} has no role {role!r}; its roles are {', '.join(self.roles) or '(none)'}")
        cls = self.roles[role]
        whole = object.__new__(type(self))
        whole.__dict__.update(
            self._whole.__dict__, _role=role, _owner=self._whole, worker_class=cls, _methods=methods_of(cls, type(self))
        )
        return whole if self._called is None else whole._part(self._called)

    def typed(self, kind: type[GroupT]) -> GroupT:
        """Return this group as the class that `python -m fanfold.worker.stubs` wrote for its worker class.

        Raises:
            GroupUsageError: That class was written for other methods than the worker class registers.
        """
        written = set(getattr(kind, "registered_methods", ()))
        missing, stale = sorted(self._methods.keys() - written), sorted(written - self._methods.keys())
        if missing or stale:
            raise GroupUsageError(
                f"{kind.__qualname__} does not fit {self.worker_class.__qualname__}: it lacks {missing or 'nothing'} "
                f"and has {stale or 'nothing'} too many; write it anew: python -m fanfold.worker.stubs "
                f"{self.worker_class.__module__}"
            )
        return cast("GroupT", self)

    @refuses_typos
    def start_worker_aliveness_check(self, every_n_seconds: float = 1, *, on_lost: OnLost = "interrupt") -> None:
        """Look after the ranks from now on, in a thread that ends with the group; a second time replaces the first.

        Args:
            every_n_seconds: Seconds between looks; one question for all ranks each time.
            on_lost: What to do when ranks are gone: "interrupt" logs the report and wakes the main thread as Ctrl-C
                does; "next_call" has the next call raise it; a function is called with the report in that thread.

        Raises:
            GroupUsageError: The backend cannot say which ranks are gone, `on_lost` is none of these, or nothing can
                wake the main thread: the process ignores Ctrl-C, and this is another thread.
            UnknownOptionError: An option that does not exist.
        """
        self._check_open(self.start_worker_aliveness_check)
        from fanfold.worker.health import AlivenessCheck  # noqa: PLC0415  # few need it, and it costs

        self.stop_worker_aliveness_check()
        self._ranks.check = AlivenessCheck(self._ranks, repr(self), every_n_seconds, on_lost)

    def stop_worker_aliveness_check(self) -> None:
        """Look after the ranks no longer."""
        if self._ranks.check is not None:
            self._ranks.check.stop()
        self._ranks.check = None

    @refuses_typos
    def recover(self, ranks: Iterable[int] | None = None, timeout: float = START_LIMIT) -> list[int]:
        """Kill ranks and start them anew in their places, under their names; returns which.

        Args:
            ranks: Which ones, as this group or part counts them; those of its ranks that are gone or still inside a
                call that has ended, unless given.
            timeout: Seconds until they have built their workers.

        Raises:
            GroupUsageError: The backend cannot renew ranks, the group did not start them, or there are none of these
                numbers.
            WorkerStartError: One could not build its worker.
        """
        if self._closed:
            self._check_open(self.recover)
        deadline = Deadline(seconds(timeout, "timeout"), f"the recovery of ranks of {self!r}")
        return renew_ranks(self._ranks, self._to_recover(ranks), deadline)

    def _to_recover(self, ranks: Iterable[int] | None) -> Iterable[int]:
        if ranks is None:
            return set(in_trouble(self._ranks)) & set(self.ranks)
        numbers = whole_numbers(ranks)
        return chosen_ranks(numbers, self.ranks, None, {}) if numbers else ()

    def close(self) -> None:
        """End the ranks, rank 0 last; a part, and a group that does not own its ranks, only lets go. Twice is fine."""
        self._released = True
        if self._owner is None:
            self.stop_worker_aliveness_check()
            self._ranks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        if self._closed:
            raise GroupUsageError(f"{self!r} is closed; it cannot be given to anybody any more")
        ticket = getattr(self._backend, "ticket", None)
        if ticket is None:
            raise NotPicklableError(
                f"{self!r} cannot travel: only the driver's process reaches ranks of the {self._backend.name} backend"
            )
        state = {name: value for name, value in self.__dict__.items() if name not in _STAYS_AT_HOME}
        return _arrived, (type(self), self._ranks.cls, *ticket(self._members), state, self._called)

    def __getattr__(self, name: str) -> Any:
        # Methods and roles are made when they are asked for, so that a group and its methods do not hold each other. A
        # typo must say what there is.
        methods = self.__dict__.get("_methods")
        if methods is None or name.startswith("__"):
            raise AttributeError(name)
        if name in methods:
            return BoundMethod(self, methods[name])
        if name in self.roles:
            return self._as_role(name)
        raise unknown_method(self, name, [*methods, *self.roles, *self._role_methods()])

    def _role_methods(self) -> list[str]:
        return [f"{role}.{method}" for role, cls in self.roles.items() for method in methods_of(cls, type(self))]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._methods, *self.roles})


def check_limits(start_timeout: float, call_timeout: float, warn_after: float | None) -> None:
    """Refuse limits that are none.

    Raises:
        GroupUsageError: Names the option.
    """
    seconds(start_timeout, "start_timeout")
    seconds(call_timeout, "call_timeout")
    if warn_after is not None:
        seconds(warn_after, "warn_after (or None)")


_STAYS_AT_HOME = ("_ranks", "_owner", "_methods", "_called", "_released")


def _arrived(  # noqa: PLR0913, PLR0917  # what a pickle stream holds, once
    kind: type[WorkerGroup[Any]],
    cls: type,
    take: Callable[..., Any],
    ticket: Sequence[Any],
    state: Mapping[str, Any],
    called: tuple[int, ...] | None,
) -> WorkerGroup[Any]:
    backend, members = take(*ticket)
    group = object.__new__(kind)
    group._adopt(backend, members, cls, state["name_prefix"], owned=False)
    group.__dict__.update(state, _methods=methods_of(state["worker_class"], kind))
    return group if called is None else group._part(called)
