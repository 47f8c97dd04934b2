"""CallPlan: one call as a value. Which rank gets what, which results come back, and what becomes of them.

Letters: W ranks of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fanfold.dispatch.arrangement import Arrangement
from fanfold.dispatch.collect import collected_value
from fanfold.dispatch.explain import plan_data, plan_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fanfold.dispatch.divide import Division
    from fanfold.dispatch.mesh import Mesh
    from fanfold.dispatch.rules import Collected


@dataclass(frozen=True)
class CallPlan(Arrangement):
    """One call, decided and not yet made. No method changes anything, of the plan or of the caller's.

    Attributes:
        method: the method's name.
        world_size: W.
        collected: the ranks whose results are needed, in collect order.
        mesh: where the ranks sit; rows of results belong to its divided axis.
        collecting: the collect rule, or a function of the outputs in collect order.
        merge: the method's merge rules.
    """

    method: str
    world_size: int
    collected: tuple[int, ...]
    mesh: Mesh
    collecting: Collected | Callable[[Sequence[Any]], Any]
    merge: Any = None

    @property
    def division(self) -> Division | None:
        """How the rows that results belong to are cut; None when nothing is divided along the mesh's own axis."""
        return self.divisions.get(self.mesh.shard)

    @property
    def collects_each_place_once(self) -> bool:
        """Whether the collected results are those of all rows, once and in order; true where nothing is divided."""
        if self.division is None:
            return True
        place = self.division.place
        return [place[rank] for rank in self.collected] == sorted({place[rank] for rank in self.ranks})

    def rows(self, rank: int) -> int | None:
        """How many of the caller's rows one rank gets, padding not counted; None when nothing is divided or counted."""
        return None if self.division is None else self.division.rows(rank)

    def padding(self, rank: int) -> int:
        """How many rows at the end of one rank's batches are padding."""
        return 0 if self.division is None else self.division.padding(rank)

    def collect(self, results: Mapping[int, Any]) -> Any:
        """The value of the call.

        Args:
            results: rank -> what it returned, for every rank of `collected`.

        Raises:
            CollectError: a rank is missing, or rows would be lost or invented; it holds the results.
        """
        return collected_value(self, results)

    def explain(self) -> str:
        """The plan as a table: a line per rank with its coordinates, what it gets of each argument, padding, bytes."""
        return plan_table(self)

    def as_data(self) -> dict[str, Any]:
        """The plan as plain data that JSON can hold."""
        return plan_data(self)
