"""What a group does with its ranks on a cluster: handles, places, profiles, and ranks that are started anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from fanfold.ray.arguments import placement_of
from fanfold.ray.discovery import answers_of
from fanfold.ray.placement import RayResourcePool
from fanfold.ray.profiling import Kind, ProfileWindow
from fanfold.ray.refs import awaited
from fanfold.ray.renewing import renewed_ranks, tell_of_repair
from fanfold.worker import START_LIMIT, Deadline, GroupUsageError, WorkerGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanfold.ray.backend import RayBackend
    from fanfold.ray.birth import GroupBirth
    from fanfold.ray.bundles import RankPlacement
    from fanfold.ray.detached import AtHome
    from fanfold.ray.refs import Actor
    from fanfold.ray.repairs import Repairs
    from fanfold.worker import Call

WorkerT = TypeVar("WorkerT")

_PROFILE_LIMIT = 120.0  # seconds for ranks to open a window: torch's profiler may have to be imported first


class RanksOnCluster(WorkerGroup[WorkerT]):
    """A group whose ranks are actors, whoever started them."""

    _birth: AtHome[GroupBirth]
    _custodian: Actor | None
    _repairs: Repairs
    _collectives: bool | None

    @property
    def _backend(self) -> RayBackend:
        return cast("RayBackend", self._ranks.backend)  # no other is ever made here, and it is asked for often

    @property
    def workers(self) -> list[Actor]:
        """The workers' actor handles, in rank order: plain Ray handles, for `handle.method.remote()` and all else."""
        return [self._members[rank].door for rank in self.ranks]

    def placement(self) -> list[RankPlacement]:
        """Return where each rank runs, in rank order; ranks that others started are asked, and are left out if busy."""
        unknown = [self._members[rank] for rank in self.ranks if rank not in self._backend.answers]
        found = dict(
            zip([member.rank for member in unknown], answers_of([member.door for member in unknown]), strict=True)
        )
        self._backend.answers.update({rank: answer for rank, answer in found.items() if answer is not None})
        bundles = self.resource_pool.bundles() if isinstance(self.resource_pool, RayResourcePool) else []
        indices = {place.rank: place.bundle_index for place in bundles}
        known = [(self._members[rank], self._backend.answers.get(rank)) for rank in self.ranks]
        return [placement_of(member, said, indices.get(member.rank)) for member, said in known if said is not None]

    def profile_calls(  # noqa: PLR0913  # by keyword, from the second on
        self,
        method: str,
        folder: str,
        *,
        skip: int = 0,
        calls: int = 1,
        ranks: Iterable[int] | None = None,
        kind: Kind = "torch",
        **options: Any,
    ) -> list[str]:
        """Have the next calls of a method profiled on the ranks, and return the files that this will write there.

        Args:
            method: Name of the method.
            folder: A folder on the ranks' nodes; made if it is not there.
            skip: How many calls go by first: the first ones warm up.
            calls: How many are profiled then.
            ranks: On which ranks; all unless given.
            kind: "torch": a trace for chrome://tracing or Perfetto; "python": for `python -m pstats`.
            options: What torch's profiler is given besides, such as `record_shapes=True`.

        Raises:
            GroupUsageError: An argument makes no sense, or there is no such method or rank.
            ModuleNotFoundError: The ranks have no torch.
            WaitTimeoutError: A rank does not answer; says which.
        """
        if not callable(getattr(self.worker_class, method, None)):
            raise GroupUsageError(
                f"{self!r} cannot profile {method!r}: {self.worker_class.__qualname__} has no such method"
            )
        window = ProfileWindow(method, folder, skip, calls, kind, options)
        wanted = list(self.ranks if ranks is None else ranks)
        absent = [rank for rank in wanted if rank not in self.ranks]
        if absent:
            raise GroupUsageError(f"{self!r} has no rank {absent[0]}")
        opened = [self._members[rank].door.fanfold_profile.remote(window) for rank in wanted]
        what = f"opening a profile window on {self!r}"
        return [
            file
            for rank, reference in zip(wanted, opened, strict=True)
            for file in awaited(reference, _PROFILE_LIMIT, what, self._members[rank].name)
        ]

    def recover(self, ranks: Iterable[int] | None = None, timeout: float = START_LIMIT) -> list[int]:
        """Kill ranks and start them anew in their bundles, under their names; returns which.

        Where the worker class has a method `on_rejoin(ranks)`, it is then called on every rank that is free, with the
        generation of each new rank by its number, so that ranks can find each other again.

        Args:
            ranks: Which ones; those that are gone or still inside a call that has ended, unless given.
            timeout: Seconds until they have built their workers.

        Raises:
            CollectiveGroupError: Other ranks are members of collectives; all have to be started anew.
            GroupUsageError: The group did not start its ranks.
            WorkerStartError: One could not build its worker, or `on_rejoin` failed.
        """
        self._check_open(self.recover)
        return renewed_ranks(self, ranks, Deadline(timeout, f"the recovery of ranks of {self!r}"))

    def replace(self, ranks: int | Iterable[int], timeout: float = START_LIMIT) -> dict[int, int]:
        """Start ranks anew, as `recover` does; returns the generation of each by its number.

        What the old ones had returned to calls that nobody has asked for yet is refused from now on.

        Raises:
            CollectiveGroupError: Other ranks are members of collectives; all have to be started anew.
            GroupUsageError: The group did not start its ranks, or has no such rank.
            WorkerStartError: One could not build its worker, or `on_rejoin` failed.
        """
        renewed = self.recover([ranks] if isinstance(ranks, int) else list(ranks), timeout)
        return {rank: self._backend.answers[rank].generation for rank in renewed}

    def restart_all(self, timeout: float = START_LIMIT) -> dict[int, int]:
        """Start all ranks anew, which meet at a new port; returns the generation of each. Load a checkpoint then.

        Raises:
            GroupUsageError: The group did not start its ranks.
            WorkerStartError: One could not build its worker, or `on_rejoin` failed.
        """
        return self.replace(range(len(self._members)), timeout)

    def note_ended(self, call: Call) -> None:
        """Know that a call has ended: ranks may still be inside it, others may be gone and are started anew then."""
        super().note_ended(call)
        # A rank that another call has met and that is a new one by now is not lost once more.
        lost = [member.rank for member in call.lost() if self._members[member.rank].door is member.door]
        if lost and not self._ranks.closed:
            tell_of_repair(self, lost)
