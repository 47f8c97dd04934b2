from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import Any

import pytest
from fanfold.worker import GroupCallError, RankFailure, WorkerLostError
from fanfold.worker.report import causes_first, group_call_error, is_victim
from hypothesis import given
from hypothesis import strategies as st


def failure(rank: int, error: BaseException, *, seconds: float = 1.0, **more: Any) -> RankFailure:
    return RankFailure(rank, f"groupTrainer_0:{rank}", "node-a", 100 + rank, "Trainer.step", seconds, error, **more)


class FussyError(Exception):
    def __init__(self, *, shard: int) -> None:
        super().__init__(f"shard {shard}")
        self.shard = shard


class SealedError(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("not to be derived from")


class SlottedError(Exception):
    __slots__ = ("shard",)

    def __init__(self, shard: int) -> None:
        super().__init__(shard)
        self.shard = shard


ERRORS = [
    KeyError("x"),
    ValueError("bad", 3),
    FileNotFoundError(2, "no such file", "/data/x"),
    OSError(28, "no space"),
    ImportError("no torch", name="torch", path="/x"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
    StopIteration(7),
    SyntaxError("bad", ("f.py", 3, 4, "x = ")),
    json.JSONDecodeError("bad", "{", 1),
    FussyError(shard=3),
    SlottedError(4),
    MemoryError(),
    TimeoutError("late"),
    ExceptionGroup("many", [ValueError(1)]),
]


@pytest.mark.parametrize("cause", ERRORS, ids=lambda error: type(error).__name__)
def test_is_an_instance_of_what_the_rank_raised_with_its_attributes(cause: Exception) -> None:
    error = group_call_error("Trainer.step", [failure(1, cause)], {0: "done"})
    assert isinstance(error, GroupCallError)
    assert isinstance(error, type(cause))
    assert error.__cause__ is cause
    assert error.args == cause.args
    for name in ("errno", "filename", "strerror", "name", "path", "start", "end", "reason", "value", "lineno", "shard"):
        if hasattr(cause, name):
            assert getattr(error, name) == getattr(cause, name), name


def test_class_that_cannot_be_derived_from_is_still_the_cause() -> None:
    cause = SealedError("shut")
    error = group_call_error("Trainer.step", [failure(1, cause)], {})
    assert not isinstance(error, SealedError)
    assert error.__cause__ is cause
    assert error.by_rank() == {1: cause}


def test_nested_group_errors() -> None:
    inner = group_call_error("Inner.step", [failure(0, KeyError("x"))], {})
    outer = group_call_error("Outer.step", [failure(2, inner)], {})
    assert isinstance(outer, KeyError)
    assert outer.by_rank() == {2: inner}
    assert "Inner.step failed on rank 0" in str(outer)


def test_report_folds_like_errors_and_ends_with_the_first() -> None:
    failures = [
        failure(rank, ValueError(f"row {17 * rank} is empty"), trace="Traceback\nhere") for rank in (0, 1, 2, 7)
    ]
    failures.append(failure(5, KeyError("x"), seconds=2.0))
    error = group_call_error("Trainer.step", failures, {3: None, 4: None}, [6])
    assert str(error).splitlines() == [
        "Trainer.step failed on ranks 0-2, 5, 7",
        "  ranks 0-2, 7: ValueError: row 0 is empty",
        "  rank 5: KeyError: 'x'",
        "  ranks 3-4: finished",
        "  rank 6: still running when the call ended",
        "first failure: rank 0 (groupTrainer_0:0, node node-a, pid 100), 1.0 s into the call",
        "Traceback",
        "here",
    ]


def test_cause_comes_before_its_victims_although_they_were_seen_first() -> None:
    told = "[gloo] Connection closed by peer [10.0.0.1]:7"
    victims = [failure(rank, RuntimeError(told), seconds=0.5) for rank in (0, 1)]
    gone = failure(2, WorkerLostError("rank 2 is gone", log=["out of memory"]), seconds=0.9, lost=True)
    error = group_call_error("Trainer.step", [*victims, gone], {})
    assert isinstance(error, WorkerLostError)
    assert error.log == ("out of memory",)
    text = str(error)
    assert "first failure: rank 2" in text
    assert f"ranks 0-1: RuntimeError: {told} (after another rank failed)" in text
    assert text.endswith("WorkerLostError: rank 2 is gone; the last of its output:\n  out of memory")


def test_victims_alone_are_still_reported() -> None:
    error = group_call_error("Trainer.step", [failure(0, ConnectionResetError("peer"))], {})
    assert isinstance(error, ConnectionResetError)
    assert "after another rank failed" not in str(error)


def test_clock_of_the_ranks_counts_where_they_share_one() -> None:
    late, early = failure(0, KeyError("late"), when=20.0), failure(1, KeyError("early"), seconds=2.0, when=10.0)
    assert [one.rank for one in causes_first([late, early])] == [1, 0]
    elsewhere = early._replace(node="node-b")
    assert [one.rank for one in causes_first([late, elsewhere])] == [0, 1]


def test_what_a_victim_is() -> None:
    assert is_victim(failure(0, BrokenPipeError()))
    assert is_victim(failure(0, RuntimeError("NCCL communicator was aborted on rank 3")))
    assert not is_victim(failure(0, KeyError("x")))
    assert not is_victim(failure(0, WorkerLostError("Broken pipe"), lost=True))


def test_exception_group_of_all() -> None:
    first, second = KeyError("a"), ValueError("b")
    error = group_call_error("Trainer.step", [failure(0, first), failure(1, second)], {})
    assert error.group().exceptions == (first, second)


@pytest.mark.parametrize("cause", [KeyError("x"), FileNotFoundError(2, "no", "/x"), SlottedError(4)])
def test_report_travels_whole(cause: Exception) -> None:
    error = group_call_error("Trainer.step", [failure(1, cause, trace="there")], {0: 5}, [2])
    arrived = pickle.loads(pickle.dumps(error))
    assert isinstance(arrived, type(cause))
    assert isinstance(arrived, GroupCallError)
    assert str(arrived) == str(error)
    assert (arrived.results, arrived.unfinished) == ({0: 5}, (2,))


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranks_are_written_as_runs(ranks: set[int]) -> None:
    text = str(group_call_error("f", [failure(rank, KeyError("x")) for rank in sorted(ranks)], {})).splitlines()[0]
    told = text.removeprefix("f failed on ").removeprefix("ranks ").removeprefix("rank ")
    runs = [[int(end) for end in part.split("-")] for part in told.split(", ")]
    assert {rank for run in runs for rank in range(run[0], run[-1] + 1)} == ranks
    assert all(later[0] > earlier[-1] + 1 for earlier, later in pairwise(runs))
