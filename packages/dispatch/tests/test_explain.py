from __future__ import annotations

import json
from typing import Any

import numpy as np
from dispatch_fakes import Group, plan, table
from fanfold.dispatch import Dispatch, Mesh, Replicate, Rows, make_nd_compute_dataproto_dispatch_fn, register

GROUP = Group(4, Mesh.from_dp_ranks("train", [1, 1, 0, 0], [False, True, True, False]))


class Trainer:
    @register(make_nd_compute_dataproto_dispatch_fn("train"), uneven="pad", reads=["x"])
    def train(self, batch: Any, lr: float = 0.1) -> Any: ...

    @register(make_nd_compute_dataproto_dispatch_fn("train"), uneven="pad")
    def arrays(self, batch: Any, lr: float = 0.1) -> Any: ...

    @register(Dispatch.DP_COMPUTE)
    def lists(self, x: Any) -> Any: ...

    @register(Dispatch.DP_COMPUTE_PROTO, balance=list)
    def balanced(self, batch: Any) -> Any: ...

    @register(
        {"dispatch_fn": lambda group, x: (([x] * group.world_size,), {}), "collect_fn": lambda group, outputs: outputs}
    )
    def custom(self, x: Any) -> Any: ...


def test_the_plan_as_a_table() -> None:
    assert plan(Trainer.train, GROUP, table(3), lr=0.5).explain() == (
        "Trainer.train(): 4 of 4 ranks, 3 distinct pieces, 2 results, collect: join\n"
        "rank  at              batch                lr     padding  bytes  collected\n"
        "0     dp=1 replica=1  rows 2..3 columns x  whole  1        ?\n"
        "1     dp=1 replica=0  rows 2..3 columns x  whole  1        ?      #1\n"
        "2     dp=0 replica=0  rows 0..2 columns x  whole  0        ?      #0\n"
        "3     dp=0 replica=1  rows 0..2 columns x  whole  0        ?"
    )


def test_the_plan_as_data() -> None:
    data = plan(Trainer.arrays, GROUP, np.zeros((3, 1000)), lr=0.5).as_data()
    assert json.loads(json.dumps(data)) == data
    assert {**data, "ranks": len(data["ranks"])} == {
        "method": "Trainer.arrays()",
        "world_size": 4,
        "collect": "join",
        "collected": [2, 1],
        "distinct_pieces": 3,
        "ranks": 4,
    }
    assert data["ranks"][0] == {
        "rank": 0,
        "at": {"dp": 1, "replica": 1},
        "arguments": {"batch": "rows 2..3", "lr": "whole"},
        "rows": 1,
        "padding": 1,
        "bytes": 16000,
        "collected": None,
    }


def test_bytes_have_units() -> None:
    lines = plan(Trainer.arrays, GROUP, np.zeros((4, 1000))).explain().splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[2:]] == ["15.6 KiB", "#1", "#0", "15.6 KiB"]
    small = plan(Trainer.arrays, GROUP, np.zeros(4, dtype="int8")).explain()
    assert "2 B" in small
    large = plan(Trainer.arrays, GROUP, np.broadcast_to(np.zeros(1), (4, 10**9))).explain()
    assert "14.9 GiB" in large


def test_items_orders_and_custom_modes() -> None:
    assert "item 3" in plan(Trainer.lists, GROUP, [1, 2, 3, 4]).explain()
    balanced = plan(Trainer.balanced, Group(2), Rows([9, 1, 1, 1, 1, 1, 1, 1])).explain()
    assert "1 rows 0 " in balanced
    assert "7 rows 1,2,3,4,... " in balanced
    custom = plan(Trainer.custom, GROUP, 5)
    assert "1 distinct pieces, 4 results, collect: custom" in custom.explain()


def test_what_goes_whole_is_not_searched() -> None:
    @register(Dispatch.ONE_TO_ALL)
    def send(self: object, x: Any, y: Any) -> None: ...

    lines = plan(send, Group(1), [Replicate(1)], np.zeros(3)).explain().splitlines()
    assert lines[2] == "0     dp=0  whole  whole  0        24 B   #0"


def test_a_call_without_arguments() -> None:
    @register(Dispatch.ONE_TO_ALL)
    def ping(self: object) -> None: ...

    assert plan(ping, Group(2)).explain() == (
        "Trainer.ping(): 2 of 2 ranks, 0 distinct pieces, 2 results, collect: list\n"
        "rank  at    padding  bytes  collected\n"
        "0     dp=0  0        ?      #0\n"
        "1     dp=1  0        ?      #1"
    )
