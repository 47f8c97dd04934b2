from __future__ import annotations

import itertools
import math

import pytest
from fanfold.megatron import LayoutError, ParallelConfig
from fanfold.megatron.topology import AXES
from hypothesis import given
from hypothesis import strategies as st

ORDERS = ["-".join(axes) for axes in itertools.permutations(AXES)]
sizes = st.tuples(*(st.sampled_from([1, 2, 3, 4, 8]) for _ in range(4))).filter(lambda four: math.prod(four) <= 64)


@given(sizes=sizes, order=st.sampled_from(ORDERS))
def test_every_group_covers_every_rank_once(sizes: tuple[int, int, int, int], order: str) -> None:
    config = _config(sizes, order)
    for count in range(1, 5):
        for axes in itertools.combinations(("tp", "cp", "dp", "pp"), count):
            groups = config.groups(*axes)
            assert sorted(rank for group in groups for rank in group) == list(range(config.world_size))
            assert {len(group) for group in groups} == {math.prod(_size(config, axis) for axis in axes)}


@given(sizes=sizes, order=st.sampled_from(ORDERS))
def test_ranks_of_a_group_differ_on_its_axes_alone(sizes: tuple[int, int, int, int], order: str) -> None:
    config = _config(sizes, order)
    for axis in ("tp", "cp", "dp", "pp"):
        for group in config.groups(axis):
            places = [config.coordinates(rank) for rank in group]
            assert [place.pop(axis) for place in places] == list(range(_size(config, axis)))
            assert all(place == places[0] for place in places)


@given(sizes=sizes, order=st.sampled_from(ORDERS))
def test_each_replica_collects_from_one_rank(sizes: tuple[int, int, int, int], order: str) -> None:
    config = _config(sizes, order)
    shares = config.data_parallel_ranks()
    assert sorted(shares[rank] for rank in range(config.world_size) if config.collects(rank)) == list(
        range(config.replicas)
    )


def test_tables_in_the_default_order() -> None:
    config = ParallelConfig(tensor=2, pipeline=2, context=2, data=2)
    assert config.groups("tp")[:2] == ((0, 1), (2, 3))
    assert config.groups("cp")[:2] == ((0, 2), (1, 3))
    assert config.groups("dp")[:2] == ((0, 4), (1, 5))
    assert config.groups("pp")[:2] == ((0, 8), (1, 9))
    assert config.groups("dp", "cp")[0] == (0, 2, 4, 6)
    assert config.data_parallel_ranks() == (0, 0, 0, 0, 1, 1, 1, 1) * 2
    assert [rank for rank in range(16) if config.collects(rank)] == [8, 12]


def test_world_size_fills_in_the_replicas() -> None:
    assert ParallelConfig(tensor=2).for_world(8) == ParallelConfig(tensor=2, data=4)
    assert str(ParallelConfig(tensor=2, sequence_parallel=True).for_world(8)) == "tensor=2 data=4 sequence_parallel"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ParallelConfig(tensor=0), "tensor=0 must be 1 or more"),
        (lambda: ParallelConfig(data=2.0), "data=2.0 must be a whole number of ranks"),  # type: ignore[arg-type]
        (lambda: ParallelConfig(context=True), "context=True must be a whole number of ranks"),
        (lambda: ParallelConfig(order="tp-xx"), "order='tp-xx' must name each of tp, cp, ep, dp, pp at most once"),
        (lambda: ParallelConfig(order="tp-tp"), "at most once"),
        (
            lambda: ParallelConfig(data=1, pipeline=2, order="tp-dp"),
            "order='tp-dp' leaves out pp, whose size is more than 1",
        ),
        (lambda: ParallelConfig(expert=4, data=2), "expert=4 must divide data x context = 2 x 1 = 2"),
        (
            lambda: ParallelConfig(tensor=4).for_world(6),
            "6 ranks cannot be divided by tensor x pipeline x context = 4 x 1 x 1 = 4",
        ),
        (
            lambda: ParallelConfig(tensor=2, data=2).for_world(8),
            "the layout tensor=2 data=2 needs 4 ranks, and the group has 8",
        ),
        (lambda: ParallelConfig().world_size, "the layout tensor=1 does not say how many replicas there are"),
        (
            lambda: ParallelConfig(data=2).coordinates(2),
            "rank 2 is not in the layout tensor=1 data=2, which has the ranks 0 to 1",
        ),
        (lambda: ParallelConfig(data=2).groups("ep2"), "groups are named by some of tp, cp, ep, dp, pp; got ep2"),
    ],
)
def test_layouts_that_cannot_be(make: object, text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        make()  # type: ignore[operator]
    assert text in str(caught.value)
    assert isinstance(caught.value, ValueError)


def _config(sizes: tuple[int, int, int, int], order: str) -> ParallelConfig:
    tensor, context, data, pipeline = sizes
    return ParallelConfig(tensor=tensor, context=context, data=data, pipeline=pipeline, order=order)


def _size(config: ParallelConfig, axis: str) -> int:
    return int(getattr(config, AXES[axis]))
