"""How many rows each data-parallel rank gets: arithmetic on numbers alone.

Letters: B rows, D data-parallel size.
"""

from __future__ import annotations

import heapq
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Cut(NamedTuple):
    """Rows in D consecutive runs.

    Attributes:
        offsets: [D + 1] run i holds rows offsets[i] to offsets[i + 1].
        padding: [D] rows added to run i so that all runs are equally long.
        order: [B] which row stands at each place when rows are reordered for balance; None keeps them in order.
    """

    offsets: tuple[int, ...]
    padding: tuple[int, ...]
    order: tuple[int, ...] | None = None


def even_cut(rows: int, parts: int) -> Cut:
    """Runs whose lengths differ by at most one, the longer ones first."""
    base, longer = divmod(rows, parts)
    offsets = tuple(part * base + min(part, longer) for part in range(parts + 1))
    return Cut(offsets, (0,) * parts)


def padded(cut: Cut) -> Cut:
    """The same rows on the same ranks, each run padded to the longest one; no rows at all need no padding."""
    lengths = [stop - start for start, stop in zip(cut.offsets, cut.offsets[1:], strict=False)]
    longest = max(lengths)
    return cut._replace(padding=tuple(longest - length for length in lengths))


def balanced_cut(weights: Sequence[float], parts: int) -> Cut:
    """Runs of nearly equal total weight: heaviest row first, each to the lightest run so far.

    The heaviest run weighs at most 4/3 of the best possible one (Graham 1969, longest processing time first).
    Within a run the rows keep their order. Equal weights give the same counts as `even_cut`.
    """
    heaviest_first = sorted(range(len(weights)), key=lambda row: -weights[row])
    runs: list[list[int]] = [[] for _ in range(parts)]
    lightest = [(0.0, 0, part) for part in range(parts)]
    for row in heaviest_first:
        weight, count, part = lightest[0]
        runs[part].append(row)
        heapq.heapreplace(lightest, (weight + weights[row], count + 1, part))
    offsets = tuple(accumulate((len(run) for run in runs), initial=0))
    return Cut(offsets, (0,) * parts, tuple(row for run in runs for row in sorted(run)))


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `order`."""
    places = [0] * len(order)
    for place, row in enumerate(order):
        places[row] = place
    return tuple(places)
