from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from fanfold.worker import PoolError, ResourcePool, Slot, UnknownOptionError
from fanfold.worker.pool import as_pool, part_sizes
from hypothesis import given
from hypothesis import strategies as st

counts = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@st.composite
def pools_and_parts(draw: st.DrawFn) -> tuple[ResourcePool, list[int]]:
    pool = ResourcePool(draw(counts), max_colocate_count=draw(st.integers(1, 4)))
    cuts = sorted(draw(st.sets(st.integers(1, pool.world_size), max_size=4)) - {pool.world_size})
    bounds = [0, *cuts, pool.world_size]
    return pool, [stop - start for start, stop in pairwise(bounds)]


class FancyPool(ResourcePool):
    def __init__(self, process_on_nodes: list[int], *, kind: str) -> None:
        super().__init__(process_on_nodes)
        self.kind = kind


def test_uneven_nodes() -> None:
    pool = ResourcePool([2, 1])
    assert pool.world_size == 3
    assert pool.store == pool() == [2, 1]
    assert pool.slots() == (Slot(0, 0, 0, 2), Slot(1, 0, 1, 2), Slot(2, 1, 0, 1))
    assert pool.local_rank_list() == [0, 1, 0]
    assert pool.local_world_size_list() == [2, 2, 1]


def test_a_callers_list_stays_the_callers() -> None:
    nodes = [2, 2]
    pool = ResourcePool(nodes)
    nodes.append(7)
    pool.store.append(9)
    assert pool.store == [2, 2]


def test_add_node() -> None:
    pool = ResourcePool()
    pool.add_node(3)
    pool.add_node(1)
    assert (pool.store, pool.max_colocate_count) == ([3, 1], 10)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True, None])
def test_counts_that_make_no_sense(wrong: Any) -> None:
    with pytest.raises(PoolError, match=r"process_on_nodes\[1\] must be a whole number of at least 1"):
        ResourcePool([1, wrong])
    with pytest.raises(PoolError, match="max_colocate_count"):
        ResourcePool([1], max_colocate_count=wrong)


@pytest.mark.parametrize("wrong", ["22", 4, {2}])
def test_what_is_no_list(wrong: Any) -> None:
    with pytest.raises(PoolError, match=r"a list of processes per node such as \[2, 2\]"):
        as_pool(wrong)


def test_misspelt_option() -> None:
    with pytest.raises(UnknownOptionError, match="did you mean 'max_colocate_count'"):
        ResourcePool([1], max_colocate_cuont=3)  # type: ignore[call-arg]


def test_a_list_is_a_pool() -> None:
    pool = ResourcePool([1])
    assert as_pool(pool) is pool
    assert as_pool((2, 1)).store == [2, 1]


@given(pools_and_parts())
def test_parts_cover_the_pool_once_and_in_order(drawn: tuple[ResourcePool, list[int]]) -> None:
    pool, sizes = drawn
    parts = pool.split(sizes)
    assert [part.world_size for part in parts] == sizes
    assert [rank for part in parts for rank in part.root_ranks()] == list(range(pool.world_size))
    assert {part.max_colocate_count for part in parts} == {pool.max_colocate_count}
    for part in parts:
        at_root = [pool.slots()[rank].node_rank for rank in part.root_ranks()]
        renumbered = [sorted(set(at_root)).index(node) for node in at_root]
        assert [slot.node_rank for slot in part.slots()] == renumbered


@given(pools_and_parts())
def test_merging_all_parts_gives_the_whole(drawn: tuple[ResourcePool, list[int]]) -> None:
    pool, sizes = drawn
    first, *others = pool.split(sizes)
    for other in reversed(others):
        first = first.merge(other)
    assert first.store == pool.store
    assert first.root_ranks() == pool.root_ranks()


@given(pools_and_parts(), st.data())
def test_nested_splits_know_the_root(drawn: tuple[ResourcePool, list[int]], data: st.DataObject) -> None:
    pool, sizes = drawn
    part = data.draw(st.sampled_from(pool.split(sizes)))
    inner = part.split([1] * part.world_size)
    assert [rank for small in inner for rank in small.root_ranks()] == list(part.root_ranks())
    assert {id(small.root) for small in inner} == {id(pool)}


def test_split_into_equal_parts() -> None:
    left, right = ResourcePool([2, 2]).split(2)
    assert (left.store, right.store) == ([2], [2])
    assert right.root_ranks() == (2, 3)


def test_split_across_a_node() -> None:
    small, large = ResourcePool([2, 2]).split([1, 3])
    assert (small.store, large.store) == ([1], [1, 2])
    assert large.slots() == (Slot(0, 0, 0, 1), Slot(1, 1, 0, 2), Slot(2, 1, 1, 2))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (3, "4 processes cannot be split into 3 equal parts"),
        (0, "the number of parts must be"),
        ([1, 2], r"parts \[1, 2\] have 3 processes together; the pool has 4"),
        ([5, -1], "the size of part 1"),
        ([4, 0], "the size of part 1"),
    ],
)
def test_splits_that_cannot_be(parts: Any, message: str) -> None:
    with pytest.raises(PoolError, match=message):
        ResourcePool([2, 2]).split(parts)


@given(st.integers(1, 60), st.integers(1, 60))
def test_part_sizes(whole: int, parts: int) -> None:
    if whole % parts:
        with pytest.raises(PoolError):
            part_sizes(whole, parts)
    else:
        assert part_sizes(whole, parts) == [whole // parts] * parts


def test_attributes_are_kept_and_compared() -> None:
    left, right = FancyPool([2, 2], kind="H100").split([1, 3])
    assert isinstance(left, FancyPool)
    assert isinstance(right, FancyPool)
    assert (left.kind, right.kind) == ("H100", "H100")
    joined = FancyPool([1], kind="H100").merge(FancyPool([2], kind="H100"))
    assert isinstance(joined, FancyPool)
    assert (joined.store, joined.kind) == ([1, 2], "H100")
    with pytest.raises(PoolError, match=r"kind='H100' and .* has 'A100'"):
        FancyPool([1], kind="H100").merge(FancyPool([1], kind="A100"))
    with pytest.raises(PoolError, match="max_colocate_count"):
        ResourcePool([1]).merge(ResourcePool([1], max_colocate_count=3))
    with pytest.raises(PoolError, match="different kinds"):
        ResourcePool([1]).merge(FancyPool([1], kind="H100"))


def test_overlapping_parts_are_refused() -> None:
    left, _ = ResourcePool([4]).split(2)
    with pytest.raises(PoolError, match=r"both have its ranks \[0\]"):
        left.merge(left.split(2)[0])


def test_nodes_are_added_to_the_whole_only() -> None:
    with pytest.raises(PoolError, match="is a part of"):
        ResourcePool([4]).split(2)[0].add_node(1)
