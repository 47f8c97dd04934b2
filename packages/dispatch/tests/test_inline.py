from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from dispatch_fakes import Table, table
from fanfold.dispatch import (
    ArgumentError,
    Dispatch,
    InlineGroup,
    Mesh,
    MeshError,
    Rows,
    current_call,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    run_inline,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Worker:
    def __init__(self) -> None:
        self.seen: list[int] = []

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def double(self, batch: Table) -> Table:
        batch.columns["x"] = [2 * x for x in batch.columns["x"]]
        self.seen.append(len(batch))
        return batch

    @register(Dispatch.ONE_TO_ALL)
    def context(self) -> tuple[Any, ...]:
        return tuple(current_call())

    @register(Dispatch.DP_COMPUTE_METRIC, uneven="pad")
    def padding(self, batch: Any) -> int:
        return current_call().padding

    @register(make_nd_compute_dataproto_dispatch_fn("train"))
    def same(self, batch: Any) -> Any:
        return batch

    @register(Dispatch.ONE_TO_ALL)
    def rank(self) -> int:
        return current_call().rank

    @register(Dispatch.ONE_TO_ALL)
    async def later(self, x: int) -> int:
        await asyncio.sleep(0)
        return x

    @register(Dispatch.ONE_TO_ALL)
    def stream(self, n: int) -> Iterator[int]:
        yield from range(n)

    @register(Dispatch.ONE_TO_ALL)
    async def async_stream(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    @register(Dispatch.RANK_ZERO)
    def fails(self) -> None:
        raise LookupError("shard 2")

    def unmarked(self) -> None: ...


class OtherWorker(Worker):
    pass


def test_three_workers_in_one_process() -> None:
    workers = [Worker(), Worker(), Worker()]
    batch = table(4)
    assert run_inline("double", workers, batch)["x"] == [0, 2, 4, 6]
    assert run_inline(Worker.double, workers, batch=batch)["x"] == [0, 2, 4, 6]
    assert batch == table(4)  # the workers wrote into copies
    assert [worker.seen for worker in workers] == [[2, 2]] * 3


def test_views_are_copied_too() -> None:
    class Writer:
        @register(Dispatch.DP_COMPUTE_PROTO)
        def write(self, array: Any) -> Any:
            array += 1
            return array

    array = np.zeros(4)
    assert run_inline("write", [Writer(), Writer()], array).tolist() == [1.0] * 4
    assert array.tolist() == [0.0] * 4


def test_the_method_learns_of_its_call() -> None:
    assert run_inline("context", [Worker(), Worker()]) == [("context", 0, 2, 0), ("context", 1, 2, 0)]
    assert run_inline("padding", [Worker()] * 3, Rows("abcd")) == [0, 1, 1]


def test_a_mesh_comes_with_the_group() -> None:
    group = InlineGroup(
        [Worker() for _ in range(4)], [Mesh.from_dp_ranks("train", [1, 1, 0, 0], [True, False, True, False])]
    )
    assert run_inline("same", group, Rows("abc")) == Rows("abc")
    assert group.call("same", Rows("abc")) == Rows("abc")
    assert group.plan("same", Rows("abc")).collected == (2, 0)
    with pytest.raises(
        MeshError, match=r"there is no mesh 'train', there is none; give it with InlineGroup\(workers, meshes="
    ):
        run_inline("same", [Worker()], Rows("abc"))


def test_asynchronous_methods_and_generators() -> None:
    workers = [Worker(), Worker()]
    assert run_inline("later", workers, 5) == [5, 5]
    assert run_inline("stream", workers, 3) == [[0, 1, 2]] * 2
    assert run_inline("async_stream", workers, n=2) == [[0, 1]] * 2


def test_errors_of_the_method_come_through() -> None:
    with pytest.raises(LookupError, match="shard 2"):
        run_inline("fails", [Worker()])


def test_what_cannot_be_called_is_named() -> None:
    with pytest.raises(
        ArgumentError, match=r"Worker has no marked method 'unmarked', there are double, context, .*mark it"
    ):
        run_inline("unmarked", [Worker()])
    with pytest.raises(ArgumentError, match="got workers none, expected at least one, all of one class"):
        run_inline("double", [], table(1))
    with pytest.raises(ArgumentError, match="got workers Worker, OtherWorker, expected at least one, all of one class"):
        InlineGroup([Worker(), OtherWorker()])


GRID = Mesh.from_sizes("train", {"tp": 2, "dp": 2})


@pytest.mark.parametrize(
    ("part", "ranks"),
    [
        (lambda group: group, [0, 1, 2, 3]),
        (lambda group: group.slice(), [0, 1, 2, 3]),
        (lambda group: group.slice([3, 1]), [1, 3]),
        (lambda group: group.slice(dp=1), [2, 3]),
        (lambda group: group.slice(dp=1, tp=[0, 1]).slice(tp=0, mesh="train"), [2]),
        (lambda group: group.slice(lambda at: at["dp"] == at["tp"]), [0, 3]),
        (lambda group: group.slice(lambda at: at["tp"] == 1, dp=0), [1]),
    ],
)
def test_a_call_to_a_slice(part: Any, ranks: list[int]) -> None:
    group = part(InlineGroup([Worker() for _ in range(4)], meshes=[GRID]))
    assert group.call("rank") == ranks
    assert group.call("same", Rows("abcde")) == Rows("abcde")
    assert sum(group.plan("same", Rows("abcde")).rows(rank) > 0 for rank in ranks) == len(ranks)


def test_a_slice_that_cannot_be_is_refused() -> None:
    group = InlineGroup([Worker() for _ in range(4)], meshes=[GRID, Mesh.from_sizes("other", {"dp": 4})])
    with pytest.raises(MeshError, match=r"^slice\(\) by places: got no mesh, there are train, other; say which"):
        group.slice(dp=0)
    with pytest.raises(MeshError, match="mesh 'other' has no axis 'tp'; its axes are dp"):
        group.slice(mesh="other", tp=0)
    with pytest.raises(ArgumentError, match=r"got ranks \[\], expected at least one, each once, of 0 to 3"):
        group.slice(mesh="other", dp=7).call("rank")
    with pytest.raises(ArgumentError, match=r"got ranks \[2, 4\], expected"):
        group.slice([4, 2]).call("rank")
