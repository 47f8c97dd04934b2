"""What moves between ranks, and what does not: objects, parts and bytes are counted."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import ray
import torch
from cluster_state import store_bytes, until
from fanfold.dataproto import DataProto, DataProtoFuture, MissingKeyError, RemoteBatch, RemoteError
from fanfold.dispatch import ArgumentError, CollectError
from fanfold.ray import RayClassWithInitArgs, RayResourcePool, RayStore, RayWorkerGroup, checking_inputs, stage, trace
from fanfold.ray.parcels import BATCH_TRAVELS_WITH_CALL, TRAVELS_WITH_CALL
from fanfold.worker import (
    CallCancelledError,
    GroupCallError,
    GroupUsageError,
    NotPicklableError,
    ReadOnlyError,
    WorkerLostError,
)
from plane_workers import Maker, Reader, kinds, numbered, rich

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ray.cluster_utils import Cluster

# Five ranks import torch for the first of these tests; on a busy machine that takes minutes.
pytestmark = pytest.mark.timeout(600)

WIDE = 13_000  # a row of 104 KB: each is too large to travel with a call


@contextmanager
def group_of(cls: type, ranks: int, name: str) -> Iterator[RayWorkerGroup[Any]]:
    with (
        RayResourcePool([ranks], cpus_per_process=0.1) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(cls), name_prefix=name, start_timeout=400) as group,
    ):
        yield group


@pytest.fixture(scope="module")
def makers(two_nodes: Cluster) -> Iterator[RayWorkerGroup[Any]]:
    with group_of(Maker, 2, "makers") as group:
        yield group


@pytest.fixture(scope="module")
def readers(two_nodes: Cluster) -> Iterator[RayWorkerGroup[Any]]:
    with group_of(Reader, 3, "readers") as group:
        yield group


@pytest.fixture(scope="module")
def pair(readers: RayWorkerGroup[Any]) -> RayWorkerGroup[Any]:
    """Two of the readers: as many as there are makers."""
    part: RayWorkerGroup[Any] = readers.slice([0, 1])
    return part


@pytest.fixture(autouse=True)
def _nothing_is_left(makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any]) -> Iterator[None]:
    gc.collect()
    before = store_bytes()
    yield
    gc.collect()
    until(lambda: store_bytes() <= before, 30)


class Counted:
    """What this process puts into the object store and brings out of it."""

    def __init__(self) -> None:
        self.put: list[Any] = []
        self.got: list[Any] = []

    def largest_got(self) -> int:
        return max((len(pickle.dumps(value)) for value in self.got), default=0)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted, put, get = Counted(), ray.put, ray.get

    def counting_put(value: Any, **options: Any) -> Any:
        counted.put.append(value)
        return put(value, **options)

    def counting_get(references: Any, **options: Any) -> Any:
        values = get(references, **options)
        counted.got += values if isinstance(references, list) else [values]
        return values

    monkeypatch.setattr(ray, "put", counting_put)
    monkeypatch.setattr(ray, "get", counting_get)
    return counted


def ledger(group: RayWorkerGroup[Any]) -> Any:
    assert group.last_call is not None
    return group.last_call


def test_every_distinct_shard_is_put_once(readers: RayWorkerGroup[Any], counted: Counted) -> None:
    batch = numbered(6, WIDE)
    readers.total(batch)
    assert [len(put) for put in counted.put] == [2, 2, 2]
    assert ledger(readers).puts == 3
    assert ledger(readers).parts == {0: 1, 1: 1, 2: 1}
    assert batch.nbytes <= ledger(readers).bytes_put < batch.nbytes + 10_000
    del counted.put[:]
    readers.whole(batch)
    assert [len(put) for put in counted.put] == [6]
    assert (ledger(readers).puts, ledger(readers).parts) == (1, {0: 1, 1: 1, 2: 1})


def test_large_shards_are_put_at_the_same_time(
    readers: RayWorkerGroup[Any], counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, threads = ray.put, set[str]()

    def noting_put(value: Any) -> Any:
        threads.add(threading.current_thread().name)
        return put(value)

    monkeypatch.setattr(ray, "put", noting_put)
    readers.total(numbered(6, WIDE))
    assert threads == {"MainThread"}
    threads.clear()
    batch = numbered(3, 1_100_000)  # 9 MB each
    assert readers.total(batch) == [[0.0, 1], [1.0, 1], [2.0, 1]]
    assert {name.partition("_")[0] for name in threads} == {"fanfold-put"}
    assert (ledger(readers).puts, ledger(readers).parts) == (3, {0: 1, 1: 1, 2: 1})
    assert batch.nbytes <= ledger(readers).bytes_put < batch.nbytes + 10_000
    assert ledger(readers).seconds["put"] > 0


def test_a_small_batch_travels_with_the_call_as_it_was_then(
    makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any], counted: Counted, tmp_path: Path
) -> None:
    batch = numbered(6)
    assert readers.read(batch).equals(batch)
    assert (ledger(readers).puts, ledger(readers).parts, counted.put) == (0, {}, [])
    assert ledger(readers).bytes_inline > batch.nbytes
    assert readers.twice(batch).get()["i"].tolist() == [0, 2, 4, 6, 8, 10]
    assert batch["i"].tolist() == [0, 1, 2, 3, 4, 5]
    path = tmp_path / "go"
    future = makers.after(batch, str(path))
    batch["i"].zero_()
    path.touch()
    assert future.get().equals(numbered(6))
    long = DataProto.from_dict({"i": numbered(6)["i"]}, {"s": ["x" * BATCH_TRAVELS_WITH_CALL] * 6})
    assert readers.read(long).equals(long)
    assert ledger(readers).puts == 3


def test_same_layout_goes_straight_through_and_the_driver_touches_none_of_it(
    makers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any], counted: Counted
) -> None:
    future = makers.grow(numbered(8), WIDE)
    put_so_far = len(counted.put)
    assert pair.total(future) == [[6.0, 4], [22.0, 4]]
    assert len(counted.put) == put_so_far
    assert (ledger(pair).puts, ledger(pair).bytes_put) == (0, 0)
    assert counted.largest_got() < TRAVELS_WITH_CALL
    assert set(ledger(pair).parts) == {0, 1}


def test_nothing_is_waited_for(makers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any], tmp_path: Path) -> None:
    path = tmp_path / "go"
    first = makers.after(numbered(8, WIDE), str(path))
    second = pair.twice(first)
    third = makers.same(second)
    assert not first.done()
    path.touch()
    assert third.get()["i"].tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert first.done()
    assert second.done()


def test_a_rank_fetches_the_parts_that_overlap_its_rows(
    makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any], counted: Counted
) -> None:
    future = makers.grow(numbered(7), WIDE)  # parts of 4 and 3 rows, read as 3, 2 and 2
    assert len(future) == 7
    assert readers.total(future) == [[3.0, 3], [7.0, 2], [11.0, 2]]
    assert ledger(readers).parts == {0: 1, 1: 2, 2: 1}
    header = future.headers()
    bytes_of = ledger(readers).bytes_fetched
    assert header[0].nbytes <= bytes_of[0] < header[0].nbytes + 10_000
    assert header[1].nbytes <= bytes_of[2] < header[1].nbytes + 10_000
    assert bytes_of[1] == bytes_of[0] + bytes_of[2]
    assert ledger(readers).puts == 0
    assert counted.largest_got() < TRAVELS_WITH_CALL
    assert readers.total(future.slice(5, 7).concat([future.slice(5, 7), future.slice(0, 1)])) == [
        [5.0, 1],
        [6.0, 1],
        [0.0, 1],
    ]
    assert ledger(readers).parts == {0: 1, 1: 1, 2: 1}


def test_small_results_travel_inside_their_headers(makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any]) -> None:
    future = makers.same(numbered(7))
    assert [header.rows for header in future.headers()] == [4, 3]
    assert readers.total(future) == [[3.0, 3], [7.0, 2], [11.0, 2]]
    assert ledger(readers).parts == {0: 1, 1: 2, 2: 1}
    assert future.get().equals(numbered(7))


def test_rows_can_be_other_than_those_that_were_given(makers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any]) -> None:
    future = makers.odd_rows(numbered(7, WIDE))
    assert len(future) == 3
    assert pair.read(future)["i"].tolist() == [1, 3, 5]
    assert future.chunk(2, uneven="split")[0].get()["i"].tolist() == [1, 3]


def test_padding_is_removed_exactly_wherever_the_rows_go(
    makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any]
) -> None:
    for width in (0, WIDE):
        future = makers.padded(numbered(7, width))
        assert readers.read(future).equals(numbered(7, width))
        assert len(future) == 7
        assert future.get().equals(numbered(7, width))
        assert readers.read(future.slice(3, 7)).equals(numbered(7, width)[3:7])
    wrong = makers.padded(numbered(7, WIDE), lose=True)
    for ask in (wrong.get, wrong.rows):
        with pytest.raises(CollectError, match=r"rank 1 .*got 4 rows, of which the last are padding.*returned 3"):
            ask()


def test_rows_that_were_dealt_out_by_weight_stay_and_are_the_callers_again_wherever_they_go(
    makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any], counted: Counted
) -> None:
    batch = numbered(7, WIDE).union(DataProto.from_dict({"weight": torch.tensor([9, 1, 8, 2, 7, 3, 30])}))
    future = makers.balanced(batch)
    put_so_far = len(counted.put)
    assert len(future) == 7
    assert readers.total(future) == [[3.0, 3], [7.0, 2], [11.0, 2]]
    assert readers.total(future.slice(6, 7).concat([future.slice(6, 7), future.slice(0, 2)])) == [
        [6.0, 1],
        [0.0, 1],
        [1.0, 1],
    ]
    assert len(counted.put) == put_so_far
    assert counted.largest_got() < TRAVELS_WITH_CALL
    assert readers.read(future).equals(batch)
    assert future.get().equals(batch)
    wrong = makers.balanced(batch, lose=True)
    for ask in (wrong.get, wrong.rows, lambda: readers.total(wrong)):
        with pytest.raises(CollectError, match=r"dealt out by weight, and returned"):
            ask()


def test_every_kind_of_column_arrives_equal_by_every_path(
    makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any]
) -> None:
    batch, choose = rich(11), random.Random(5)
    future, staged = makers.same(batch), stage(batch)
    assert future.get().equals(batch)
    assert pair.read(future).equals(batch)
    assert readers.read(future).equals(batch)
    assert staged.materialize().equals(batch)
    assert readers.read(staged).equals(batch)
    columns = [*batch.batch.keys(), *batch.non_tensor_batch]  # type: ignore[union-attr]
    for _ in range(6):
        names = choose.sample(columns, choose.randint(1, len(columns)))
        first, last = sorted(choose.sample(range(12), 2))
        tensors = [name for name in names if name in batch.batch]  # type: ignore[operator]
        expected = batch.select(tensors, [name for name in names if name not in tensors])[first:last]
        for lazily in (future, staged):
            assert readers.read(lazily.select(names).slice(first, last)).equals(expected), (names, first, last)
    both = future.select(["i", "ragged"]).union(staged.future().select(["s", "bf16"]))
    assert readers.read(both).equals(batch.select(["i", "ragged", "bf16"], ["s"]))
    joined = DataProtoFuture.concat([future.slice(9, 11), staged.slice(0, 4)])
    assert readers.read(joined).equals(DataProto.concat([batch[9:11], batch[0:4]]))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("kind", list(kinds(1)))
@pytest.mark.parametrize("rows", [7, 0])
def test_batches_of_every_kind_arrive_equal_by_every_path(
    kind: str, rows: int, makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any]
) -> None:
    batch = kinds(rows)[kind]
    names = [*(batch.batch.keys() if batch.batch is not None else ()), *batch.non_tensor_batch]
    assert readers.read(batch).equals(batch)
    for future in (makers.same(batch), makers.in_pieces(batch), stage(batch).future()):
        assert future.get().equals(batch)
        assert pair.read(future).equals(batch)
        assert readers.read(future).equals(batch)
        assert readers.read(future.slice(1, 6)).equals(batch[1:6])
        assert len(future) == rows
        assert sorted(future.columns()) == sorted(names)
    first, others = [names[0]], names[1:]
    halves = makers.same(batch).select(first), stage(batch).future().select(others)
    assert readers.read(halves[0].union(halves[1])).equals(batch)
    assert readers.read(halves[0].union(halves[1]).slice(2, 5)).equals(batch[2:5])


def test_fan_out_and_fan_in(makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any], counted: Counted) -> None:
    future = makers.grow(numbered(6), WIDE)
    ways = [readers.twice(future) for _ in range(3)]
    back = DataProtoFuture.concat(ways)
    assert len(back) == 18
    assert readers.total(back) == [[30.0, 6]] * 3
    assert counted.largest_got() < TRAVELS_WITH_CALL
    assert ledger(readers).parts == {0: 3, 1: 3, 2: 3}


def test_only_the_columns_that_are_read_are_fetched(readers: RayWorkerGroup[Any], counted: Counted) -> None:
    batch = numbered(6, WIDE)
    staged = stage(batch)
    assert isinstance(staged, RemoteBatch)
    assert len(counted.put) == 4  # three columns, and what belongs to all of them
    for _ in range(3):
        assert readers.reads_one(staged) == [[["i"], []]] * 3
    assert ledger(readers).puts == 0
    assert ledger(readers).parts == dict.fromkeys(range(3), 2)
    assert max(ledger(readers).bytes_fetched.values()) < 5000
    assert readers.total(staged.select(["i"])) == [[1.0, 2], [5.0, 2], [9.0, 2]]
    assert ledger(readers).parts == dict.fromkeys(range(3), 2)
    assert readers.whole(staged) == [6, 6, 6]
    assert ledger(readers).parts == dict.fromkeys(range(3), 4)
    assert len(counted.put) == 4


def test_columns_that_were_kept_apart_travel_alone(
    makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any], counted: Counted
) -> None:
    batch = numbered(7, 50_000)
    future = makers.in_pieces(batch)
    put_so_far = len(counted.put)
    assert future.columns() == ["i", "wide", "s"]
    for narrow in (future.select(["i"]), future.select("s"), future.select(["i", "s"])):
        assert readers.read(narrow).equals(narrow.get())
        assert max(ledger(readers).bytes_fetched.values()) < 20_000
    assert readers.total(future.select(["i"])) == [[3.0, 3], [7.0, 2], [11.0, 2]]
    # Of each producer a frame and a column; of the second its header too, for it had a row of padding.
    assert ledger(readers).parts == {0: 2, 1: 5, 2: 3}
    assert pair.reads_one(future) == [[["i"], []]] * 2
    assert max(ledger(pair).bytes_fetched.values()) < 20_000
    assert len(counted.put) == put_so_far
    assert counted.largest_got() < TRAVELS_WITH_CALL
    assert readers.read(future).equals(batch)
    assert min(ledger(readers).bytes_fetched.values()) > 1_000_000
    assert future.get().equals(batch)
    assert readers.read(future.slice(2, 6).select(["wide", "s"])).equals(batch[2:6].select(["wide"], ["s"]))


def test_what_was_to_be_apart_and_is_not_there(makers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any]) -> None:
    future = makers.in_pieces(numbered(4))
    assert future.get().equals(numbered(4))
    assert pair.read(future).equals(numbered(4))
    with pytest.raises(MissingKeyError, match="there is no column 'wide', which was to be stored apart"):
        pair.read(future.select(["wide"]))
    every_kind = makers.in_pieces(rich(5))
    assert every_kind.get().equals(rich(5))
    assert pair.read(every_kind).equals(rich(5))
    assert makers.no_pieces(numbered(4)).get() == [{"rows": 2}, {"rows": 2}]
    with pytest.raises(GroupUsageError, match=r"Maker\.no_pieces returned builtins\.dict, which has no rows"):
        len(makers.no_pieces(numbered(4)))


def test_reads_narrows_what_is_put_and_refuses_before_anything_is(
    readers: RayWorkerGroup[Any], counted: Counted
) -> None:
    assert readers.reads_one(numbered(6, WIDE)) == [[["i"], []]] * 3
    assert ledger(readers).bytes_put < 10_000
    del counted.put[:]
    for batch in (DataProto.from_dict({"j": numbered(3)["i"]}), stage(DataProto.from_dict({"j": numbered(3)["i"]}))):
        put_so_far = len(counted.put)
        with pytest.raises(
            ArgumentError, match=r"reads= names columns i, which no batch of this call has; there are j"
        ):
            readers.reads_one(batch)
        assert len(counted.put) == put_so_far


def test_a_column_that_nobody_made_names_who_did_not(makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any]) -> None:
    future = makers.same(numbered(7, WIDE))
    with pytest.raises(MissingKeyError, match="there is no column 'score'") as caught:
        readers.read(future.select(["score"]))
    assert "\nthe rows were to be made of the result of Maker.same from rank " in str(caught.value)
    assert isinstance(caught.value, GroupCallError)
    sources = [note for note in caught.value.by_rank()[0].__notes__ if "the result of" in note]
    assert ["from rank 0 (makersMaker_0:0" in source for source in sources] == [True]
    with pytest.raises(MissingKeyError, match="there is no column 'score'"):
        stage(numbered(3)).select(["score"])


def test_rows_out_of_bounds_are_none(makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any]) -> None:
    future = makers.same(numbered(7, WIDE))
    assert readers.read(future.slice(5, 100)).equals(numbered(7, WIDE)[5:7])
    none = readers.read(future.slice(50, 100))
    assert len(none) == 0
    assert sorted(none.batch.keys()) == ["i", "wide"]


def test_the_error_of_what_was_passed_on_is_the_first_ones(
    makers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any]
) -> None:
    future = makers.fails(numbered(4, WIDE), "raise")
    last = makers.same(pair.twice(future))
    for ask in (last.get, last.rows, future.get, lambda: pair.total(future)):
        with pytest.raises(KeyError, match="no such prompt") as caught:
            ask()
        assert isinstance(caught.value, GroupCallError)
        assert caught.value.method == "Maker.fails"
        assert set(caught.value.by_rank()) == {0, 1}
    assert pair.total(numbered(4)) == [[1.0, 2], [5.0, 2]]


def test_a_result_that_cannot_travel_says_so(makers: RayWorkerGroup[Any]) -> None:
    with pytest.raises(NotPicklableError, match=r"the result of .* cannot travel"):
        makers.unpicklable(numbered(4)).get()


def test_what_has_no_rows_is_a_list(makers: RayWorkerGroup[Any]) -> None:
    future = makers.count(numbered(7))
    with pytest.raises(GroupUsageError, match=r"Maker\.count returned builtins\.dict, which has no rows"):
        len(future)
    assert future.get() == [{"rows": 4}, {"rows": 3}]


def test_cancelled(makers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any], tmp_path: Path) -> None:
    path, before = tmp_path / "go", store_bytes()
    future = pair.slow(makers.same(numbered(4, WIDE)), str(path))
    assert future.slice(0, 1).cancel()[0].keys() == {0, 1}
    path.touch()
    for ask in (future.get, future.rows):
        with pytest.raises(CallCancelledError):
            ask()
    gc.collect()
    until(lambda: store_bytes() <= before, 30)  # although what was cancelled is still held


def test_the_last_of_a_chain_holds_no_memory_of_those_before_it(
    makers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any]
) -> None:
    before = store_bytes()
    large = makers.grow(numbered(8), 50_000)  # 1.6 MB
    last = pair.total.options(blocking=False)(large)
    assert last.result() == [[6.0, 4], [22.0, 4]]
    until(lambda: store_bytes() > before + 1_000_000)  # nodes report it from time to time
    del large
    gc.collect()
    until(lambda: store_bytes() <= before, 30)
    assert last.result() == [[6.0, 4], [22.0, 4]]


def test_awaited(makers: RayWorkerGroup[Any]) -> None:
    async def ask() -> tuple[Any, Any]:
        future = makers.same(numbered(7, WIDE))
        return await future, await future.slice(2, 4)

    whole, some = asyncio.run(ask())
    assert whole.equals(numbered(7, WIDE))
    assert some.equals(numbered(7, WIDE)[2:4])


def test_a_method_can_be_given_the_future_itself(makers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any]) -> None:
    future = makers.same(numbered(6, WIDE))
    assert pair.given(future) == [[True, 3, [0, 1, 2]], [True, 3, [3, 4, 5]]]


def test_a_future_that_travelled_fetches_by_itself(makers: RayWorkerGroup[Any]) -> None:
    future = makers.same(numbered(7, WIDE))
    travelled = ray.get(ray.put(future.slice(2, 6)))
    assert travelled.get().equals(numbered(7, WIDE)[2:6])
    failed = ray.get(ray.put(makers.fails(numbered(2), "raise")))
    with pytest.raises(KeyError, match="no such prompt"):
        failed.get()


def test_another_cluster_is_refused(makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any]) -> None:
    store = RayStore()
    handle = store.put(numbered(3))
    handle.cluster = "session_of_yesterday"
    with pytest.raises(
        GroupUsageError, match=r"a value that was staged is in another cluster \(session_of_yesterday\)"
    ):
        store.fetch([handle], 1)


def test_freed_and_out_of_hand(readers: RayWorkerGroup[Any]) -> None:
    staged = stage(numbered(6, WIDE))
    kept = staged.future()
    staged.free()
    with pytest.raises(RemoteError, match="was freed"):
        readers.read(staged)
    with pytest.raises(GroupUsageError, match="this value was freed; stage the batch again"):
        readers.read(kept)
    with pytest.raises(GroupUsageError, match=r"stage\(\) got a builtins\.int, which cannot be stored"):
        stage(7)


def test_memory_is_mapped_and_writable_only_when_it_may_be(
    makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any]
) -> None:
    batch = numbered(6, 5 * WIDE)  # what is below Ray's own limit travels with its reply and is nobody else's
    future = makers.same(batch)
    for given in (batch, stage(batch), future):
        assert pair.memory_readonly(given) == [["store", "store"]] * 2
        assert pair.memory_writable(given) == [["store", "own"]] * 2
    assert future.get().equals(batch)


def test_a_broken_promise_is_noticed_where_that_is_checked(
    makers: RayWorkerGroup[Any], pair: RayWorkerGroup[Any]
) -> None:
    for given in (numbered(4, WIDE), makers.same(numbered(4, WIDE))):
        with checking_inputs():
            assert pair.breaks_its_word(given, lie=False) == [2, 2]
            with pytest.raises(ReadOnlyError, match=r"breaks_its_word .*argument 0: columns \['i'\] were written"):
                pair.breaks_its_word(given, lie=True)
        assert pair.breaks_its_word(given, lie=False) == [2, 2]


def test_times_are_counted_by_phase(makers: RayWorkerGroup[Any], readers: RayWorkerGroup[Any]) -> None:
    readers.read(numbered(6, WIDE))
    found = ledger(readers)
    assert found.method == "Reader.read"
    assert set(found.seconds) == {"plan", "put", "submit", "execute", "fetch", "collect"}
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert found.results == 3
    assert numbered(6, WIDE).nbytes <= found.bytes_collected
    assert str(found).startswith("Reader.read: put 3 objects, ")


def test_rows_outlive_the_ranks_that_made_them(two_nodes: Cluster, readers: RayWorkerGroup[Any]) -> None:
    with group_of(Maker, 1, "short") as short:
        future, unfinished = short.same(numbered(4, WIDE)), None
        assert len(future) == 4
        unfinished = short.after(numbered(4), "/nowhere")
    assert readers.total(future) == [[1.0, 2], [2.0, 1], [3.0, 1]]
    assert future.get().equals(numbered(4, WIDE))
    with pytest.raises(WorkerLostError):
        unfinished.get()


def test_a_rank_that_dies_is_the_producers_not_the_consumers(two_nodes: Cluster, readers: RayWorkerGroup[Any]) -> None:
    with group_of(Maker, 1, "dying") as dying:
        future = dying.fails(numbered(3, WIDE), "exit")
        with pytest.raises(WorkerLostError, match="dyingMaker_0:0") as caught:
            readers.total(future)
        assert isinstance(caught.value, GroupCallError)
        assert caught.value.method == "Maker.fails"
        assert readers.total(numbered(3)) == [[0.0, 1], [1.0, 1], [2.0, 1]]


def test_a_trace_has_driver_and_ranks_on_one_axis(readers: RayWorkerGroup[Any], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    readers.read(numbered(3))
    with trace(path):
        readers.read(numbered(6, WIDE))
        readers.whole(numbered(2))
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert sorted(names.values()) == ["driver", *(f"readersReader_0:{rank}" for rank in range(3))]
    spans = [event for event in events if event["ph"] == "X"]
    calls = {event["name"]: event for event in spans if (event["pid"], event["tid"]) == (0, 1)}
    assert list(calls) == ["Reader.read", "Reader.whole"]
    assert calls["Reader.read"]["args"]["puts"] == 3
    assert {event["name"] for event in spans if event["tid"] == 2} >= {"plan", "put", "submit", "execute", "fetch"}
    for event in [event for event in spans if event["pid"] != 0]:
        outer = calls[f"Reader.{event['name']}"]
        assert outer["ts"] <= event["ts"] <= event["ts"] + event["dur"] <= outer["ts"] + outer["dur"] + 1
    assert sorted(event["name"] for event in spans if event["pid"] != 0) == ["read"] * 3 + ["whole"] * 3


def test_the_same_batch_sent_again_and_again_is_worth_a_word(
    readers: RayWorkerGroup[Any], caplog: pytest.LogCaptureFixture
) -> None:
    large, small = numbered(6, 30_000), numbered(6, WIDE)
    staged = stage(large)
    with caplog.at_level("WARNING", "fanfold.ray"):
        for _ in range(4):
            readers.whole(large)
            readers.whole(small)
            readers.whole(staged)
    (said,) = caplog.messages
    assert said.startswith("Reader.whole: the same batch of 1 MB has been put into the object store 3 times")
