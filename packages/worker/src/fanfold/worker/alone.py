"""Being the only rank: for scripts, notebooks and tests that make a worker as they make any other object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanfold.worker.errors import RankEnvironmentError
from fanfold.worker.rank import RankInfo, current_rank, give_back, lend

if TYPE_CHECKING:
    from typing import Self


class OnlyRank:
    """Makes this process the only rank, at once, so that workers can be made in it as plain objects.

    `close()`, or the end of a `with` block, gives the environment back as it was. Where the process is the only rank
    already, as under a launcher with one process, nothing changes.

    Raises:
        RankEnvironmentError: This process is one of several ranks.
    """

    def __init__(self) -> None:
        rank = _rank_of_this_process()
        if rank is not None and rank.world_size > 1:
            raise RankEnvironmentError(
                f"this process is rank {rank.rank} of {rank.world_size} and cannot be the only one; a worker made here "
                "is that rank as it is"
            )
        self._before = lend(RankInfo(rank=0, world_size=1)) if rank is None else {}

    def close(self) -> None:
        """Give the environment back; twice is fine."""
        give_back(self._before)
        self._before = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rank_of_this_process() -> RankInfo | None:
    try:
        return current_rank()
    except RankEnvironmentError:
        return None
