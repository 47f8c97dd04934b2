from __future__ import annotations

import json
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from fanfold.worker import RankStatus, Whereabouts, WorkerGroup
from fanfold.worker.stuck import last_collective, render, stack_of
from gates import Gated, gate

if TYPE_CHECKING:
    import pytest


def test_table() -> None:
    statuses = {
        0: RankStatus(0),
        1: RankStatus(1, "step", 93.04, "File a\n  here\n", waiting=2),
        2: RankStatus(2, "step", 5.0, "File a\n  here\n", note="last collective: all_reduce (started)"),
        3: RankStatus(3, note="did not answer within 5 s"),
    }
    assert render(statuses, {rank: f"w{rank}" for rank in statuses}).splitlines() == [
        "rank  method                        seconds  waiting  worker",
        "   0  -                                   -        0  w0",
        "   1  step                             93.0        2  w1",
        "   2  step                              5.0        0  w2  last collective: all_reduce (started)",
        "   3  -                                   -        0  w3  did not answer within 5 s",
        "stack of ranks 1, 2:",
        "File a",
        "  here",
    ]


def test_longest_call_is_told() -> None:
    where = Whereabouts(rank=4)
    assert where.status() == RankStatus(4)
    with where.inside(1, "outer"), where.inside(2, "inner"):
        status = where.status(waiting=3)
        assert (status.rank, status.method, status.waiting) == (4, "outer", 3)
        assert "test_longest_call_is_told" in status.stack
    assert where.status() == RankStatus(4)


def test_stack_of_a_thread_that_is_gone() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert stack_of(thread.ident or 0) == ""


def test_last_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._C._distributed_c10d", raising=False)
    assert last_collective() == ""
    recorder: Any = types.ModuleType("torch._C._distributed_c10d")
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", recorder)
    assert last_collective() == ""
    entries: list[dict[str, Any]] = []
    recorder._dump_fr_trace_json = lambda: json.dumps({"entries": entries}).encode()
    assert last_collective() == ""
    entries += [{"profiling_name": "nccl:broadcast", "state": "completed"}]
    entries += [{"profiling_name": "nccl:all_reduce", "state": "started"}]
    assert last_collective() == "last collective: nccl:all_reduce (started)"
    entries[-1]["collective_seq_id"] = 7
    assert last_collective() == "last collective: nccl:all_reduce number 7 (started)"


def test_why_stuck_of_a_part() -> None:
    with WorkerGroup([3], Gated, backend="threads", name_prefix="why-") as group:
        call = group.wait.options(blocking=False)("stuck", (1,))
        while "gates.py" not in group.why_stuck():
            pass
        assert "why-Gated_0:2" not in group[0:2].why_stuck()
        stack = group[1].why_stuck().split("stack of rank 1:\n")[1]
        assert "gates.py" in stack.splitlines()[0]  # what led to the user's method is not shown
        assert "gates.py" in group[1].why_stuck()
        waiting = group[1].quick.options(blocking=False)()
        assert group[1].why_stuck().splitlines()[1].split()[:1] == ["1"]
        assert group[1].why_stuck().splitlines()[1].split()[3] == "1"
        gate("stuck").set()
        call.result(30)
        waiting.result(30)
