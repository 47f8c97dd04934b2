"""Pieces of equal weight: which rows go where so that every data-parallel rank has about as much to do.

Letters: `B` rows, `U` units (rows, or groups that stay together), `D` pieces.

The rule is the largest differencing method of Karmarkar and Karp (1982) for D ways, then moves and swaps between the
heaviest piece and the others until none helps. The spread (heaviest minus lightest piece) never exceeds the heaviest
unit: differencing adds two partial solutions heaviest to lightest, so no spread exceeds the larger of the two before,
and a move or swap keeps every piece between the old lightest and the old heaviest.
"""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

P = TypeVar("P")
_ROUNDS = 50
# The non-empty pieces of a partial solution, heaviest first: (weight, units).
_Partial: TypeAlias = list[tuple[float, list[int]]]


@dataclass(frozen=True)
class BalancedSplit(Generic[P]):
    """Pieces of about equal weight, and the way back.

    Attributes:
        pieces: D batches
        permutation: [B] int64; the pieces one after the other are the batch in this order
        inverse: [B] int64; `joined[inverse]` has the order of the batch again
        weights: total weight of each piece
    """

    pieces: list[P]
    permutation: Tensor
    inverse: Tensor
    weights: list[float]

    def restore(self, joined: Any) -> Any:
        """Return what was made of the pieces, put together in their order, in the order of the batch.

        >>> split = DataProto.from_dict({"x": torch.arange(3)}).balanced(2, weights=[1, 9, 2])
        >>> split.restore(DataProto.concat(split.pieces))["x"]
        tensor([0, 1, 2])
        """
        return joined[self.inverse]


def partition(weights: Sequence[float], pieces: int, *, equal_size: bool = False) -> list[list[int]]:
    """Divide units into `pieces` lists of about equal total weight, each in ascending order of units.

    Args:
        weights: [U], none negative
        pieces: D
        equal_size: give every piece as many units; D must divide U. The bound on the spread does not hold then.

    >>> sorted(partition([4, 5, 6, 7, 8], 2))
    [[0, 1, 2], [3, 4]]
    """
    if not weights:
        return [[] for _ in range(pieces)]
    first = _tuples(weights, pieces) if equal_size else [[(weight, [unit])] for unit, weight in enumerate(weights)]
    found = [units for _, units in _differenced(first, pieces)]
    found += [[] for _ in range(pieces - len(found))]
    return [sorted(piece) for piece in _improved(found, np.asarray(weights, dtype=np.float64), equal_size)]


def _tuples(weights: Sequence[float], pieces: int) -> list[_Partial]:
    order = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
    return [[(weights[unit], [unit]) for unit in group] for group in _batched(order, pieces)]


def _batched(order: list[int], size: int) -> list[list[int]]:
    return [order[start : start + size] for start in range(0, len(order), size)]


def _differenced(partials: list[_Partial], pieces: int) -> _Partial:
    tie = itertools.count()
    heap = [(-_spread(partial, pieces), next(tie), partial) for partial in partials]
    heapq.heapify(heap)
    while len(heap) > 1:
        merged = _merged(heapq.heappop(heap)[2], heapq.heappop(heap)[2], pieces)
        heapq.heappush(heap, (-_spread(merged, pieces), next(tie), merged))
    return heap[0][2]


def _spread(partial: _Partial, pieces: int) -> float:
    return partial[0][0] - (partial[-1][0] if len(partial) == pieces else 0.0)


def _merged(one: _Partial, other: _Partial, pieces: int) -> _Partial:
    # Heaviest to lightest; empty pieces, which are not stored, are the lightest, so only what exceeds D meets.
    meeting = max(0, len(one) + len(other) - pieces)
    alone = one[: len(one) - meeting] + other[: len(other) - meeting]
    late_one, late_other = one[len(one) - meeting :], other[len(other) - meeting :]
    both = [(a + b, units + more) for (a, units), (b, more) in zip(late_one, reversed(late_other), strict=True)]
    return sorted(alone + both, key=lambda piece: -piece[0])


def _improved(pieces: list[list[int]], weights: NDArray[np.float64], equal_size: bool) -> list[list[int]]:
    totals = [float(weights[piece].sum()) for piece in pieces]
    for _ in range(_ROUNDS):
        if not _improve_once(pieces, totals, weights, equal_size):
            break
    return pieces


def _improve_once(pieces: list[list[int]], totals: list[float], weights: NDArray[np.float64], equal_size: bool) -> bool:
    high = max(range(len(pieces)), key=totals.__getitem__)
    for low in sorted(range(len(pieces)), key=totals.__getitem__):
        gap = totals[high] - totals[low]
        if gap <= 0:
            return False
        step = _best_step(weights[pieces[high]], weights[pieces[low]], gap, equal_size)
        if step is not None:
            moved = _apply(pieces[high], pieces[low], step, weights)
            totals[high] -= moved
            totals[low] += moved
            return True
    return False


def _best_step(
    heavy: NDArray[np.float64], light: NDArray[np.float64], gap: float, equal_size: bool
) -> tuple[int, int] | None:
    """Positions in both pieces to swap, -1 for nothing from the light one, or None when nothing helps."""
    # Moving the difference d leaves |gap - 2d| between the two, so a light unit near (heavy unit - gap / 2) is best.
    order = np.argsort(light)
    choices = light[order] if equal_size else np.concatenate([[0.0], light[order]])
    if not len(choices) or not len(heavy):
        return None
    right = np.searchsorted(choices, heavy - gap / 2).clip(0, len(choices) - 1)
    tried = np.stack([right, (right - 1).clip(0)])
    moved = heavy - choices[tried]
    left = np.where((moved > 0) & (moved < gap), np.abs(gap - 2 * moved), np.inf)
    which, unit = np.unravel_index(int(np.argmin(left)), left.shape)
    if left[which, unit] >= gap * (1 - 1e-9):
        return None
    choice = int(tried[which, unit]) - (0 if equal_size else 1)
    return int(unit), -1 if choice < 0 else int(order[choice])


def _apply(heavy: list[int], light: list[int], step: tuple[int, int], weights: NDArray[np.float64]) -> float:
    unit, other = heavy.pop(step[0]), None if step[1] < 0 else light.pop(step[1])
    light.append(unit)
    if other is None:
        return float(weights[unit])
    heavy.append(other)
    return float(weights[unit] - weights[other])


def permutation_of(pieces: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return the order of rows that the pieces make, and its inverse."""
    order = torch.tensor([row for piece in pieces for row in piece], dtype=torch.int64)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order))
    return order, inverse
