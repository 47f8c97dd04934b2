"""Starting ranks of a group anew: which may be, what the others hear of it, and what the caller reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.ray.errors import CollectiveGroupError
from fanfold.ray.following import follow
from fanfold.ray.repairs import in_words
from fanfold.worker import Deadline, Failure, GroupUsageError, WaitTimeoutError, WorkerStartError
from fanfold.worker.health import lost_ranks_error
from fanfold.worker.starting import renew_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanfold.ray.ranks import RanksOnCluster
    from fanfold.worker import StartedRank

_REJOIN = "on_rejoin"


def renewed_ranks(group: RanksOnCluster[Any], which: Iterable[int] | None, deadline: Deadline) -> list[int]:
    """Start ranks anew, let every rank hear of it, and let a detached group's custodian know.

    Raises:
        CollectiveGroupError: Other ranks are members of collectives.
        GroupUsageError: The group did not start its ranks, or has no such rank.
        WorkerStartError: One could not build its worker, or `on_rejoin` failed.
    """
    ranks = group._ranks  # noqa: SLF001  # this module is the group's own
    wanted = _in_trouble(group) if which is None else sorted(set(which))
    absent = [rank for rank in wanted if not 0 <= rank < len(ranks.members)]
    if absent:
        raise GroupUsageError(f"{group!r} has no rank {absent[0]}; its ranks are 0 to {len(ranks.members) - 1}")
    refuse_with_collectives(group, wanted)
    renewed = renew_ranks(ranks, wanted, deadline)
    if renewed:
        if group._birth.value is not None:  # noqa: SLF001  # as above
            group._birth.value.settle(ranks.members, ranks.cls)  # noqa: SLF001  # as above
            group._custodian = group._birth.value.custodian  # noqa: SLF001  # as above; it may be a new one
        rejoin(group, renewed, deadline)
    return renewed


def _in_trouble(group: RanksOnCluster[Any]) -> list[int]:
    ranks = group._ranks  # noqa: SLF001  # as above
    return sorted({member.rank for member, _ in ranks.busy()} | set(group._backend.lost(ranks.members)))  # noqa: SLF001


def refuse_with_collectives(group: RanksOnCluster[Any], wanted: Sequence[int]) -> None:
    """Refuse to start some ranks anew where the others could never talk to them.

    Raises:
        CollectiveGroupError: Names the ranks and the ways out.
    """
    left = [member for member in group._members if member.rank not in set(wanted)]  # noqa: SLF001  # as above
    if not left or not wanted or group._collectives is False:  # noqa: SLF001  # as above
        return
    bound = group._backend.in_collectives(left)  # noqa: SLF001  # as above
    if group._collectives is None and not bound:  # noqa: SLF001  # as above
        return
    why = f"rank {bound[0]} is a member of a torch process group" if bound else "the group was made with collectives"
    raise CollectiveGroupError(
        f"rank {', '.join(map(str, wanted))} of {group!r} cannot be started anew without the others: {why}, and a new "
        "process cannot join the old one's. Use restart_all() and load a checkpoint; or make the group with "
        "collectives=False if its on_rejoin() builds the process groups again"
    )


def rejoin(group: RanksOnCluster[Any], renewed: Sequence[int], deadline: Deadline) -> None:
    """Call `on_rejoin` on all ranks at once, those that are busy too, and wait for those that are free.

    Raises:
        WorkerStartError: It failed on a rank.
        WaitTimeoutError: It was not over in time.
    """
    ranks = group._ranks  # noqa: SLF001  # as above
    if not callable(getattr(ranks.cls, _REJOIN, None)):
        return
    busy = {member.rank for member, _ in ranks.busy()}
    news = {rank: group._backend.answers[rank].generation for rank in renewed}  # noqa: SLF001  # as above
    ranks.submit_hook([member for member in ranks.members if member.rank in busy], _REJOIN, (news,))
    free = [member for member in ranks.members if member.rank not in busy]
    for member, outcome in ranks.run_hook(free, _REJOIN, (news,), deadline.left()):
        _check(member, outcome, deadline)


def _check(member: StartedRank, outcome: Any, deadline: Deadline) -> None:
    if outcome is None:
        raise WaitTimeoutError(deadline.what, deadline.seconds, missing=f"{_REJOIN} of {member.name}")
    if isinstance(outcome, Failure):
        raise WorkerStartError(
            f"{_REJOIN} of rank {member.rank} ({member.name}) failed: "
            f"{type(outcome.error).__name__}: {outcome.error}\n{outcome.trace}"
        ) from outcome.error


def tell_of_repair(group: RanksOnCluster[Any], lost: Sequence[int]) -> None:
    """Do what the group's failure policy says, and write into the report of each lost rank what that was.

    A group that only joined its ranks goes on with those that their owner has put in the places of lost ones.
    """
    told = {rank: error for rank, error in group._backend.obituaries.items() if rank in lost}  # noqa: SLF001  # as above
    report = lost_ranks_error(repr(group), told)
    report.ranks = tuple(lost)
    if group._ranks.order is None:  # noqa: SLF001  # as above
        found = follow(group, lost)
        done = f"its owner has started anew: {in_words(found)}; further calls go there" if found else ""
    else:
        done = group._repairs.react(group, report)  # noqa: SLF001  # as above
    for error in told.values() if done else ():
        error.args = (f"{error.args[0]}; {done}", *error.args[1:])
