"""Laws of every call, over all modes, meshes, numbers of rows, rules, types and ways to pass an argument.

The oracle below is written to be obviously right: lists of row numbers, dealt out one rank at a time.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from dispatch_fakes import Group, Table, run
from fanfold.dispatch import Dispatch, Mesh, Rows, make_nd_compute_dataproto_dispatch_fn, plan_call, register, spec_of
from hypothesis import given
from hypothesis import strategies as st


@dataclass(frozen=True)
class Layout:
    """dp_ranks[r] is the data-parallel rank of rank r; collect[r] is true for one rank of each."""

    dp_ranks: tuple[int, ...]
    collect: tuple[bool, ...]

    @property
    def size(self) -> int:
        return max(self.dp_ranks) + 1

    @property
    def group(self) -> Group:
        return Group(len(self.dp_ranks), Mesh.from_dp_ranks("train", self.dp_ranks, self.collect))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any numbering of any number of replicas, collected from any one of them."""
    replicas = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    places = [(dp_rank, replica) for dp_rank, count in enumerate(replicas) for replica in range(count)]
    places = draw(st.permutations(places))
    chosen = [draw(st.integers(0, count - 1)) for count in replicas]
    return Layout(
        tuple(dp_rank for dp_rank, _ in places), tuple(chosen[dp_rank] == replica for dp_rank, replica in places)
    )


def world(size: int) -> Layout:
    return Layout(tuple(range(size)), (True,) * size)


def rows_of_each_place(rows: int, places: int) -> list[list[int]]:
    """The oracle: deal `rows` to `places`, one more to the first ones while some are left over."""
    left, dealt, start = rows % places, [], 0
    for _ in range(places):
        count = rows // places + (1 if left > 0 else 0)
        left -= 1
        dealt.append(list(range(start, start + count)))
        start += count
    return dealt


def with_padding(dealt: list[list[int]], rows: int) -> list[list[int]]:
    """The oracle: every place repeats its last row, or the batch's last, until all have as many as the fullest."""
    longest = max(map(len, dealt))
    return [own + [own[-1] if own else rows - 1] * (longest - len(own)) for own in dealt]


def rows_batch(rows: int) -> Any:
    return Rows(range(rows))


def table_batch(rows: int) -> Any:
    return Table({"x": list(range(rows)), "o": [{"row": row} for row in range(rows)]})


def array_batch(rows: int) -> Any:
    return np.arange(rows * 2).reshape(rows, 2)


def numbers(batch: Any) -> list[int]:
    if isinstance(batch, Table):
        return list(batch["x"])
    return [int(pair[0]) // 2 for pair in batch] if isinstance(batch, np.ndarray) else list(batch)


def marked(mode: Any, **options: Any) -> Any:
    def call(self: Any, batch: Any, lr: float = 0.1) -> Any: ...

    return register(mode, **options)(call)


MODES = {
    "proto": (Dispatch.DP_COMPUTE_PROTO, False),
    "nd": (make_nd_compute_dataproto_dispatch_fn("train"), True),
}
batches = st.sampled_from([rows_batch, table_batch, array_batch])
row_counts = st.integers(0, 12) | st.integers(0, 200)
rules = st.sampled_from(["split", "pad", "skip"])
modes = st.sampled_from(sorted(MODES))


def planned(mode: str, layout: Layout, batch: Any, uneven: str, by_keyword: bool) -> Any:
    method = marked(MODES[mode][0], uneven=uneven)
    args, kwargs = ((), {"batch": batch}) if by_keyword else ((batch, 0.5), {})
    spec = spec_of(method)
    assert spec is not None
    return plan_call(spec, method, layout.group, args, kwargs)


def batch_of(plan: Any, rank: int) -> Any:
    args, kwargs = plan.arguments(rank)
    return args[0] if args else kwargs["batch"]


@given(modes, layouts(), row_counts, rules, batches, st.booleans())
def test_each_rank_gets_the_rows_that_the_oracle_deals_it(  # noqa: PLR0913, PLR0917  what the law is over
    mode: str, layout: Layout, rows: int, uneven: str, make: Any, by_keyword: bool
) -> None:
    if mode == "proto":
        layout = world(len(layout.dp_ranks))
    dealt = rows_of_each_place(rows, layout.size)
    expected = with_padding(dealt, rows) if uneven == "pad" and rows else dealt
    running = [rank for rank, place in enumerate(layout.dp_ranks) if uneven != "skip" or dealt[place] or place == 0]
    plan = planned(mode, layout, make(rows), uneven, by_keyword)
    assert list(plan.ranks) == running
    for rank in running:
        place = layout.dp_ranks[rank]
        assert numbers(batch_of(plan, rank)) == expected[place]
        assert (plan.rows(rank), plan.padding(rank)) == (len(dealt[place]), len(expected[place]) - len(dealt[place]))


@given(modes, layouts(), row_counts, rules, batches, st.booleans())
def test_collected_output_is_what_one_process_returns(  # noqa: PLR0913, PLR0917  what the law is over
    mode: str, layout: Layout, rows: int, uneven: str, make: Any, by_keyword: bool
) -> None:
    plan = planned(mode, layout, make(rows), uneven, by_keyword)
    collected = run(plan, lambda rank, batch, lr=0.1: copy.deepcopy(batch))
    assert type(collected) is type(make(0))
    assert numbers(collected) == list(range(rows))


@given(layouts(), row_counts, rules)
def test_results_are_collected_in_data_parallel_order_from_the_chosen_ranks(
    layout: Layout, rows: int, uneven: str
) -> None:
    plan = planned("nd", layout, Rows(range(rows)), uneven, True)
    expected = sorted((dp_rank, rank) for rank, dp_rank in enumerate(layout.dp_ranks) if layout.collect[rank])
    assert list(plan.collected) == [rank for _, rank in expected if rank in plan.ranks]


@given(modes, layouts(), row_counts, rules, batches)
def test_the_caller_s_objects_stay_as_they_are(mode: str, layout: Layout, rows: int, uneven: str, make: Any) -> None:
    batch = make(rows)
    before = pickle.dumps(batch)
    plan = planned(mode, layout, batch, uneven, False)
    run(plan, lambda rank, part, lr: copy.deepcopy(part))
    plan.explain()
    assert pickle.dumps(batch) == before


@given(modes, layouts(), row_counts, rules)
def test_every_distinct_piece_is_placed_once(mode: str, layout: Layout, rows: int, uneven: str) -> None:
    plan = planned(mode, layout, Rows(range(rows)), uneven, False)
    pieces = plan.pieces()
    assert len(set(pieces)) == len(pieces)
    by_rank = {piece for rank in plan.ranks for piece in plan.call_for(rank)[0]}
    assert by_rank == set(pieces)
    places = layout.size if mode == "nd" else len(layout.dp_ranks)
    assert sum(piece.kind == "rows" for piece in pieces) <= places


@given(
    layouts(),
    st.lists(st.integers(0, 100), max_size=60),
    st.sampled_from(["split", "pad", "skip"]),
    batches,
)
def test_rows_dealt_out_by_weight_come_back_in_order(
    layout: Layout, weights: list[int], uneven: str, make: Any
) -> None:
    method = marked(make_nd_compute_dataproto_dispatch_fn("train"), uneven=uneven, balance=lambda _: weights)
    spec = spec_of(method)
    assert spec is not None
    plan = plan_call(spec, method, layout.group, (make(len(weights)),), {})
    got = {rank: numbers(batch_of(plan, rank))[: plan.rows(rank)] for rank in plan.ranks}
    first_of_place = {layout.dp_ranks[rank]: rank for rank in plan.ranks}
    assert sorted(row for rank in first_of_place.values() for row in got[rank]) == list(range(len(weights)))
    assert all(got[rank] == got[first_of_place[layout.dp_ranks[rank]]] for rank in plan.ranks)
    assert numbers(run(plan, lambda rank, batch: batch)) == list(range(len(weights)))


@given(layouts(), st.data())
def test_a_slice_deals_all_rows_among_its_own_ranks(layout: Layout, data: st.DataObject) -> None:
    ranks = data.draw(st.sets(st.sampled_from(range(len(layout.dp_ranks))), min_size=1))
    rows = data.draw(row_counts)
    method = marked(make_nd_compute_dataproto_dispatch_fn("train"))
    spec = spec_of(method)
    assert spec is not None
    plan = plan_call(spec, method, layout.group, (Rows(range(rows)),), {}, ranks=sorted(ranks))
    present = sorted({layout.dp_ranks[rank] for rank in ranks})
    dealt = dict(zip(present, rows_of_each_place(rows, len(present)), strict=True))
    for rank in ranks:
        assert numbers(batch_of(plan, rank)) == dealt[layout.dp_ranks[rank]]
    assert run(plan, lambda rank, batch: batch) == Rows(range(rows))


@given(st.integers(1, 6), st.data())
def test_lists_give_item_i_to_rank_i_and_come_back_in_rank_order(world_size: int, data: st.DataObject) -> None:
    items = st.lists(st.integers(), min_size=world_size, max_size=world_size)
    batch, lr = data.draw(items), tuple(data.draw(items))
    for mode in (Dispatch.DP_COMPUTE, Dispatch.ALL_TO_ALL):
        method = marked(mode)
        spec = spec_of(method)
        assert spec is not None
        plan = plan_call(spec, method, Group(world_size), (batch,), {"lr": lr})
        assert run(plan, lambda rank, batch, lr: (rank, batch, lr)) == list(
            zip(range(world_size), batch, lr, strict=True)
        )


@pytest.mark.parametrize("rows", [0, 1, 1023, 1024, 10_007])
@pytest.mark.parametrize("uneven", ["split", "pad", "skip"])
def test_the_plan_of_1024_ranks_is_the_oracle_s(rows: int, uneven: str) -> None:
    # Ranks are numbered so that neither dp nor tp is a simple division of the rank.
    dp_ranks = tuple((rank * 7) % 1024 // 8 for rank in range(1024))
    collect = tuple((rank * 7) % 1024 % 8 == 5 for rank in range(1024))
    layout = Layout(dp_ranks, collect)
    dealt = rows_of_each_place(rows, 128)
    expected = with_padding(dealt, rows) if uneven == "pad" and rows else dealt
    plan = planned("nd", layout, Rows(range(rows)), uneven, False)
    for rank in plan.ranks:
        assert numbers(batch_of(plan, rank)) == expected[dp_ranks[rank]]
    collectors = [rank for _, rank in sorted((dp_ranks[rank], rank) for rank in range(1024) if collect[rank])]
    assert list(plan.collected) == [rank for rank in collectors if rank in set(plan.ranks)]
    assert run(plan, lambda rank, batch, lr: batch) == Rows(range(rows))


def test_huge_batches_are_planned_without_touching_them() -> None:
    class Huge(Table):
        def __len__(self) -> int:
            return 10**15

        def __getitem__(self, key: Any) -> Any:
            raise AssertionError("planning must not cut")

    plan = planned("nd", Layout((0, 1, 2), (True,) * 3), Huge({}), "split", False)
    assert [(piece.start, piece.stop) for piece in plan.pieces()[:3]] == [
        (0, 333333333333334),
        (333333333333334, 666666666666667),
        (666666666666667, 10**15),
    ]
