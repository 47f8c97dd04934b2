"""How many rows each place along an axis gets: arithmetic on numbers alone.

Letters: B rows, D places.
"""

from __future__ import annotations

import heapq
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Cut(NamedTuple):
    """B rows in D consecutive runs.

    Attributes:
        offsets: [D + 1] run i holds the rows from offsets[i] up to offsets[i + 1].
        padding: [D] rows added to run i so that all runs are equally long.
        order: [B] the row that stands at each place when rows are dealt out by weight; None when they keep their order.
    """

    offsets: tuple[int, ...]
    padding: tuple[int, ...]
    order: tuple[int, ...] | None = None

    def runs(self) -> Iterator[tuple[int, int]]:
        """[D] start and stop of each run."""
        return pairwise(self.offsets)

    def length(self, run: int) -> int:
        """The rows of one run, padding not counted."""
        return self.offsets[run + 1] - self.offsets[run]

    def padded(self) -> Cut:
        """The same rows in the same runs, each padded to the longest."""
        lengths = [stop - start for start, stop in self.runs()]
        return self._replace(padding=tuple(max(lengths) - length for length in lengths))


def even_cut(rows: int, places: int) -> Cut:
    """Runs whose lengths differ by at most one, the longer ones first."""
    base, longer = divmod(rows, places)
    return Cut(tuple(place * base + min(place, longer) for place in range(places + 1)), (0,) * places)


def weighted_cut(weights: Sequence[float], places: int, longest: int | None = None) -> Cut:
    """Runs of nearly equal total weight: heaviest row first, each to the lightest run so far, of equals the shortest.

    Without a limit on length the heaviest run weighs at most 4/3 of the best possible one (longest processing time
    first; Graham, 1969). Rows of one run keep their order.

    Args:
        weights: [B] weight of each row.
        places: D.
        longest: no run gets more rows than this; at least B / D.
    """
    runs: list[list[int]] = [[] for _ in range(places)]
    lightest = [(0.0, 0, place) for place in range(places)]
    for row in sorted(range(len(weights)), key=lambda row: -weights[row]):
        weight, count, place = lightest[0]
        runs[place].append(row)
        if count + 1 == longest:
            heapq.heappop(lightest)
        else:
            heapq.heapreplace(lightest, (weight + weights[row], count + 1, place))
    offsets = tuple(accumulate(map(len, runs), initial=0))
    return Cut(offsets, (0,) * places, tuple(row for run in runs for row in sorted(run)))


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `order`."""
    places = [0] * len(order)
    for place, row in enumerate(order):
        places[row] = place
    return tuple(places)
