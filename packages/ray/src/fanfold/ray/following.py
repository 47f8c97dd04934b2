"""Ranks that were started anew by whoever owns them, as those see it that only joined the group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanfold.ray.discovery import answers_of
from fanfold.ray.names import actor_named
from fanfold.worker import StartedRank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanfold.ray.ranks import RanksOnCluster

_PATIENCE = 1.0  # seconds for a new rank to say who it is; the caller waits for the news of the old one's end


def follow(group: RanksOnCluster[Any], lost: Sequence[int]) -> dict[int, int]:
    """Let the group's next calls go to the actors that have the names of lost ranks now.

    Returns:
        The generation of each such rank, by its number; a rank that nobody has started anew yet is not among them.
    """
    old = [group._members[rank] for rank in lost]  # noqa: SLF001  # this module is the group's own
    namespace = group._backend.namespace  # noqa: SLF001  # as above
    handles = [(member, actor_named(member.name, namespace)) for member in old]
    living = [(member, handle) for member, handle in handles if handle is not None]
    answers = answers_of([handle for _, handle in living], _PATIENCE)
    found = {
        member.rank: (StartedRank(member.rank, member.name, answer.address, answer.pid, handle), answer)
        for (member, handle), answer in zip(living, answers, strict=True)
        if answer is not None
    }
    if found:
        group._ranks.replace([member for member, _ in found.values()])  # noqa: SLF001  # as above
        group._backend.answers.update({rank: answer for rank, (_, answer) in found.items()})  # noqa: SLF001  # as above
    return {rank: answer.generation for rank, (_, answer) in found.items()}
