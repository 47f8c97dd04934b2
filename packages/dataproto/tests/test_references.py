"""Futures of promises, without a store."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from fanfold.dataproto import ColumnTypeError, DataProto, DataProtoFuture, RemoteError, RemoteTimeoutError
from fanfold.dataproto.references import References


def numbered(first: int, last: int) -> DataProto:
    return DataProto.from_dict({"i": torch.arange(first, last)}, {"s": [str(row) for row in range(first, last)]})


class Reference:
    """What a cluster runtime gives out: it has no result itself, but a `future()`."""

    def __init__(self, promise: "Future[Any]") -> None:
        self.promise = promise

    def future(self) -> "Future[Any]":
        return self.promise


def test_promises_are_parts_and_nothing_waits_before_get() -> None:
    promises: list[Future[Any]] = [Future() for _ in range(3)]
    future = DataProtoFuture.concat([Reference(promise) for promise in promises])
    halves = future.chunk(2)
    part, column = future.slice(3, 5), future.select(["s"])
    for promise, bounds in zip(promises, [(0, 3), (3, 5), (5, 8)], strict=True):
        promise.set_result(numbered(*bounds))
    assert future.rows() == 8
    assert [half.get() for half in halves] == [numbered(0, 4), numbered(4, 8)]
    assert halves[1].chunk(2)[1].get()["i"].tolist() == [6, 7]
    assert part.get() == numbered(3, 5)
    assert list(column.get()["s"]) == [str(row) for row in range(8)]
    assert DataProtoFuture.concat(promises).get() == numbered(0, 8)


def test_the_error_of_a_producer_is_the_error_of_get() -> None:
    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(int, "no number")
        with pytest.raises(ValueError, match="no number"):
            DataProtoFuture.concat([failed]).get()
    late: Future[Any] = Future()
    late.set_exception(TimeoutError("the producer gave up"))
    with pytest.raises(TimeoutError, match="the producer gave up"):
        DataProtoFuture.concat([late]).get(timeout=60)
    never: Future[Any] = Future()
    never.cancel()
    with pytest.raises(RemoteError, match="part 0 was cancelled"):
        DataProtoFuture.concat([never]).get()


def test_waiting_has_a_limit_that_says_which_part() -> None:
    here: Future[Any] = Future()
    here.set_result(numbered(0, 1))
    future = DataProtoFuture.concat([here, Future()])
    with pytest.raises(RemoteTimeoutError, match=r"part 1 did not arrive within 0\.0\d* s"):
        future.get(timeout=0.01)
    with pytest.raises(RemoteTimeoutError, match="part 0 did not arrive within 0 s"):
        References(limit=0).fetch([Future()], None)
    assert 0 < References()._limit < threading.TIMEOUT_MAX


def test_promises_among_futures_are_refused() -> None:
    promise: Future[Any] = Future()
    with pytest.raises(ColumnTypeError, match="entry 1 is a Future; expected a DataProtoFuture or a RemoteBatch"):
        DataProtoFuture.concat([DataProtoFuture.concat([promise]), promise])
    with pytest.raises(RemoteError, match="a int cannot be stored here"):
        References().put(3)
    References().free([promise])
