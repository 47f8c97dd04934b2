"""Our tables against Megatron's own, over every order and many sizes; needs no process, but imports Megatron-Core."""

from __future__ import annotations

import itertools
import math

import pytest
from fanfold.megatron import LayoutError, ParallelConfig
from fanfold.megatron.topology import AXES, DEFAULT_ORDER
from fanfold.megatron.worker import load_engine

# Where ep stands changes no table of the dense layers: there its size is 1.
ORDERS = ["-".join(("ep", *axes)) for axes in itertools.permutations(axis for axis in AXES if axis != "ep")]
TOKENS = ["tp", "cp", "dp", "pp", "dp-cp", "tp-pp", "tp-dp-cp", "tp-dp", "tp-cp"]
EXPERT_TOKENS = ["tp", "ep", "dp", "pp", "tp-ep", "tp-ep-pp"]
load_engine("parallel")
SIZES = [four for four in itertools.product((1, 2, 3, 4), repeat=4) if math.prod(four) <= 64]


@pytest.mark.parametrize("order", ORDERS)
def test_tables_are_megatrons(order: str) -> None:
    from megatron.core.parallel_state import RankGenerator  # noqa: PLC0415 takes 5 s, and only after load_engine without warnings

    for tensor, context, data, pipeline in SIZES:
        ours = ParallelConfig(tensor=tensor, context=context, data=data, pipeline=pipeline, order=order)
        theirs = RankGenerator(tp=tensor, ep=1, dp=data, pp=pipeline, cp=context, order=order)
        for token in TOKENS:
            assert [list(ranks) for ranks in ours.groups(*token.split("-"))] == theirs.get_ranks(token)


@pytest.mark.parametrize("order", [DEFAULT_ORDER, "tp-ep-dp-cp-pp", "ep-tp-cp-dp-pp", "tp-cp-ep-pp-dp"])
def test_expert_tables_are_megatrons(order: str) -> None:
    from megatron.core.parallel_state import RankGenerator  # noqa: PLC0415 as above

    compared = 0
    for tensor, context, data, pipeline in SIZES:
        for expert in {1, 2, 4, data * context}:
            try:
                ours = ParallelConfig(
                    tensor=tensor, context=context, data=data, pipeline=pipeline, expert=expert, order=order
                )
            except LayoutError:
                continue
            theirs = RankGenerator(tp=tensor, ep=expert, dp=data * context // expert, pp=pipeline, cp=1, order=order)
            for token in EXPERT_TOKENS:
                assert [list(ranks) for ranks in ours.expert_groups(*token.split("-"))] == theirs.get_ranks(token)
            compared += 1
    assert compared > 100
