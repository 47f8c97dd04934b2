from __future__ import annotations

import pytest
from fanfold.dispatch.cut import Cut, even_cut, inverse, weighted_cut
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("rows", "places", "offsets"),
    [(10, 3, (0, 4, 7, 10)), (2, 4, (0, 1, 2, 2, 2)), (0, 2, (0, 0, 0)), (8, 4, (0, 2, 4, 6, 8)), (5, 1, (0, 5))],
)
def test_rows_are_cut_as_evenly_as_possible(rows: int, places: int, offsets: tuple[int, ...]) -> None:
    assert even_cut(rows, places) == Cut(offsets, (0,) * places)


@given(rows=st.integers(0, 10**9), places=st.integers(1, 300))
def test_lengths_differ_by_at_most_one_and_longer_runs_come_first(rows: int, places: int) -> None:
    cut = even_cut(rows, places)
    lengths = [cut.length(run) for run in range(places)]
    assert sum(lengths) == rows
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


def test_padding_fills_every_run_to_the_longest() -> None:
    assert even_cut(5, 4).padded() == Cut((0, 2, 3, 4, 5), (0, 1, 1, 1))
    assert even_cut(2, 3).padded() == Cut((0, 1, 2, 2), (0, 0, 1))
    assert even_cut(6, 3).padded() == even_cut(6, 3)


def test_weights_deal_heavy_rows_to_light_runs() -> None:
    # 9 | 8 | 7+1 | 6+2 would be best; the greedy rule finds it here.
    assert weighted_cut([1, 2, 6, 7, 8, 9], 4) == Cut((0, 1, 2, 4, 6), (0,) * 4, (5, 4, 0, 3, 1, 2))


def test_equal_weights_give_equal_counts() -> None:
    assert weighted_cut([3] * 10, 4).offsets == (0, 3, 6, 8, 10)
    assert weighted_cut([0] * 10, 4).offsets == (0, 3, 6, 8, 10)
    assert weighted_cut([], 3) == Cut((0, 0, 0, 0), (0, 0, 0), ())


@given(weights=st.lists(st.integers(0, 10**6), max_size=60), places=st.integers(1, 9))
def test_every_row_is_dealt_once_and_no_run_exceeds_the_known_bound(weights: list[int], places: int) -> None:
    cut = weighted_cut(weights, places)
    assert cut.order is not None
    assert sorted(cut.order) == list(range(len(weights)))
    loads = [sum(weights[row] for row in cut.order[start:stop]) for start, stop in cut.runs()]
    # No schedule is better than the mean load or the heaviest row; greedy is at most one heaviest row above the mean.
    assert max(loads) <= sum(weights) / places + max(weights, default=0)
    for start, stop in cut.runs():
        assert list(cut.order[start:stop]) == sorted(cut.order[start:stop])


@given(weights=st.lists(st.integers(0, 100), max_size=60), places=st.integers(1, 9))
def test_a_limit_on_length_is_kept_and_fills_every_run(weights: list[int], places: int) -> None:
    longest = -(-len(weights) // places)
    cut = weighted_cut(weights, places, longest=longest)
    assert cut.order is not None
    assert sorted(cut.order) == list(range(len(weights)))
    assert max(cut.length(run) for run in range(places)) == longest


@given(st.permutations(range(20)))
def test_inverse_undoes_an_order(order: list[int]) -> None:
    undone = inverse(order)
    assert [order[undone[row]] for row in range(20)] == list(range(20))
