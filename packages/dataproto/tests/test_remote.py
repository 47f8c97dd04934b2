import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from tensordict import TensorDict

from fanfold.dataproto import (
    ColumnTypeError,
    DataProto,
    DataProtoFuture,
    Header,
    MergeError,
    MissingKeyError,
    Part,
    RemoteBatch,
    RemoteError,
    RemoteTimeoutError,
    RowIndexError,
    SplitError,
    header_of,
)


class Shelf:
    """A store in this process that pickles what it holds and writes down what is asked of it."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.asked: list[str] = []

    def put(self, value: object) -> str:
        handle = f"h{len(self.held)}"
        self.held[handle] = pickle.dumps(value)
        return handle

    def fetch(self, handles: Sequence[str], timeout: float | None) -> list[Any]:
        self.fetched += handles
        return [self._get(handle) for handle in handles]

    def header(self, handle: str, timeout: float | None) -> Any:
        self.asked.append(handle)
        return self._get(handle)

    def free(self, handles: Sequence[str]) -> None:
        for handle in handles:
            del self.held[handle]

    def _get(self, handle: str) -> Any:
        if handle not in self.held:
            raise LookupError(f"{handle} was freed")
        return pickle.loads(self.held[handle])


def numbered(first: int, last: int) -> DataProto:
    rows = range(first, last)
    return DataProto.from_dict(
        {"i": torch.tensor(list(rows), dtype=torch.int64)}, {"s": [str(row) for row in rows]}, {"k": 1}
    )


def produced(shelf: Shelf, *bounds: tuple[int, int]) -> DataProtoFuture:
    batches = [numbered(*pair) for pair in bounds]
    return DataProtoFuture.of(shelf, [(shelf.put(header_of(batch)), shelf.put(batch)) for batch in batches])


def test_nothing_is_asked_for_before_get() -> None:
    shelf = Shelf()
    future = produced(shelf, (0, 3), (3, 5), (5, 8))
    later = (
        DataProtoFuture.concat([future.chunk(2, uneven="split")[1], future])
        .slice(1, -1)
        .select(["i"])
        .union(future[0:9])
    )
    assert repr(later) == "DataProtoFuture of 9 parts"
    assert (shelf.asked, shelf.fetched) == ([], [])
    assert future.get() == numbered(0, 8)
    assert (shelf.asked, shelf.fetched) == ([], ["h1", "h3", "h5"])


def test_a_consumer_fetches_the_parts_that_overlap_its_rows() -> None:
    shelf = Shelf()
    future = produced(shelf, (0, 3), (3, 5), (5, 8))
    pieces = future.chunk(4)
    assert [piece.rows() for piece in pieces] == [2, 2, 2, 2]
    assert shelf.fetched == []
    assert pieces[1].get() == numbered(2, 4)
    assert shelf.fetched == ["h1", "h3"]
    shelf.fetched.clear()
    assert pieces[3].get() == numbered(6, 8)
    assert shelf.fetched == ["h5"]


def test_a_chunk_of_a_chunk_is_a_piece_of_that_piece() -> None:
    future = produced(Shelf(), (0, 3), (3, 8))
    quarters = [quarter.get()["i"].tolist() for half in future.chunk(2) for quarter in half.chunk(2)]
    assert quarters == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert future[2:7][1:-1].get()["i"].tolist() == [3, 4, 5]
    assert len(future[2:7].chunk(5)[4][0:1]) == 1


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    steps=st.lists(
        st.tuples(st.just("slice"), st.none() | st.integers(-9, 9), st.none() | st.integers(-9, 9))
        | st.tuples(st.just("chunk"), st.integers(1, 4), st.integers(0, 3)),
        max_size=4,
    ),
)
def test_what_composes_on_futures_composes_on_batches(lengths: list[int], steps: list[Any]) -> None:
    ends = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    future, batch = produced(Shelf(), *itertools.pairwise(ends)), numbered(0, ends[-1])
    for kind, one, two in steps:
        if kind == "slice":
            future, batch = future.slice(one, two), batch.slice(one, two)
        else:
            future, batch = future.chunk(one, uneven="split")[two % one], batch.chunk(one, uneven="split")[two % one]
    assert future.rows() == len(batch)
    assert future.get() == batch


def test_columns() -> None:
    shelf = Shelf()
    future = produced(shelf, (0, 3), (3, 5))
    assert future.columns() == ["i", "s"]
    assert future.select("s").columns() == ["s"]
    assert list(future.select(["s"])[2:4].get().non_tensor_batch["s"]) == ["2", "3"]
    assert future.select(["s"]).get().batch is None or not list(future.select(["s"]).get().batch.keys())
    with pytest.raises(MissingKeyError, match="no column 'z'"):
        future.select(["z"]).get()
    with pytest.raises(MissingKeyError, match=r"no column 'i'; .* were selected before"):
        future.select(["s"]).select(["i"]).get()


def test_union_of_equal_rows() -> None:
    shelf = Shelf()
    other = DataProto.from_dict({"w": torch.arange(4.0)})
    weights = DataProtoFuture.of(shelf, [(header_of(other), shelf.put(other))])
    both = produced(shelf, (0, 2), (2, 4)).union(weights)
    assert both[1:3].get() == numbered(1, 3).union(other[1:3])
    shelf.fetched.clear()
    assert both.select(["w"])[0:1].get()["w"].tolist() == [0.0]
    assert len(shelf.fetched) == 1
    with pytest.raises(MergeError, match=r"union of futures with \[3, 4\] rows"):
        produced(shelf, (0, 3)).union(weights).get()


def test_rows_that_were_never_assumed() -> None:
    future = produced(Shelf(), (0, 3), (3, 5))
    with pytest.raises(SplitError, match="5 rows that were not here when they were divided cannot make 2 equal chunks"):
        future.chunk(2)[0].get()
    with pytest.raises(ColumnTypeError, match="rows that are not here cannot be padded"):
        future.chunk(2, uneven="pad")
    with pytest.raises(SplitError, match="chunks is 0"):
        future.chunk(0)
    with pytest.raises(ColumnTypeError, match="expected a slice of consecutive rows"):
        future[3]
    assert len(future.slice(5, 9).get()) == 0
    assert future.slice(5, 9).get()["i"].dtype == torch.int64


def test_futures_travel() -> None:
    future = pickle.loads(pickle.dumps(produced(Shelf(), (0, 3), (3, 5)).chunk(5)[3].select(["i"])))
    assert future.get()["i"].tolist() == [3]


def test_parts_that_are_tensordicts() -> None:
    shelf = Shelf()
    parts = [TensorDict({"x": torch.arange(2)}, batch_size=[2]), TensorDict({"x": torch.arange(3)}, batch_size=[3])]
    future = DataProtoFuture.of(shelf, [(header_of(part), shelf.put(part)) for part in parts])
    assert future.rows() == 5
    assert future[1:4].select(["x"]).get()["x"].tolist() == [1, 0, 1]
    mixed = DataProtoFuture.concat([future, produced(shelf, (0, 1))])
    with pytest.raises(MergeError, match="parts of the types"):
        mixed.get()


def test_headers_may_be_plain_mappings() -> None:
    shelf = Shelf()
    future = DataProtoFuture.of(shelf, [({"rows": 2, "columns": ["i", "s"], "bytes": 3}, shelf.put(numbered(0, 2)))])
    assert (future.rows(), shelf.asked) == (2, [])
    known = DataProtoFuture.of(shelf, [(shelf.put({"rows": 2, "columns": ["i", "s"]}), shelf.put(numbered(0, 2)))])
    assert (known.rows(), known.columns()) == (2, ["i", "s"])
    wrong = DataProtoFuture.of(shelf, [(shelf.put([1]), shelf.put(numbered(0, 2)))])
    with pytest.raises(RemoteError, match=r"the header of a part is \[1\]"):
        wrong.rows()


def test_waiting_has_a_limit() -> None:
    future = produced(Shelf(), (0, 3))
    with pytest.raises(RemoteTimeoutError, match="a part did not arrive within 0 s") as raised:
        future.get(timeout=0)
    assert isinstance(raised.value, TimeoutError)
    assert future.get(timeout=60) == future.result() == numbered(0, 3)


def test_misuse() -> None:
    with pytest.raises(MergeError, match="a DataProtoFuture of no parts"):
        DataProtoFuture.of(Shelf(), [])
    with pytest.raises(MergeError, match="concat got no futures"):
        DataProtoFuture.concat([])
    with pytest.raises(MergeError, match="entry 1 belongs to another store"):
        DataProtoFuture.concat([produced(Shelf(), (0, 1)), produced(Shelf(), (0, 1))])
    with pytest.raises(ColumnTypeError, match="entry 0 is a int"):
        DataProtoFuture.concat([3])


@given(batch=st.from_type(DataProto), data=st.data())
def test_staged_batches_come_back(batch: DataProto, data: st.DataObject, picture: Callable[[DataProto], Any]) -> None:
    shelf = Shelf()
    remote = RemoteBatch.stage(batch, shelf)
    assert (len(remote), set(remote.columns)) == (len(batch), set(batch.schema().columns))
    assert picture(remote.materialize()) == picture(batch)
    part = data.draw(st.slices(len(batch)).filter(lambda part: part.step in (None, 1)))
    if remote.columns:
        assert picture(remote.slice(part.start, part.stop).get()) == picture(batch[part.start : part.stop])


def test_a_staged_batch() -> None:
    shelf = Shelf()
    offsets = torch.tensor([0, 1, 3])
    batch = DataProto.from_dict(
        {
            "a": torch.nested.nested_tensor_from_jagged(torch.arange(3), offsets),
            "b": torch.nested.nested_tensor_from_jagged(torch.ones(3), offsets),
        },
        {"s": ["x", "y"]},
        {"step": 1},
    )
    remote = RemoteBatch.stage(batch, shelf)
    assert remote.columns == ["a", "b", "s"]
    whole = remote.materialize()
    assert (whole["a"] * whole["b"]).values().tolist() == [0.0, 1.0, 2.0]
    shelf.fetched.clear()
    assert list(remote.materialize(["s"])["s"]) == ["x", "y"]
    assert len(shelf.fetched) == 2
    assert remote.select("s").chunk(2)[1].get().meta_info == {"step": 1}
    with pytest.raises(MissingKeyError, match=r"no column 'z'; the remote batch has \['a', 'b', 's'\]"):
        remote.select(["z"])
    with pytest.raises(MissingKeyError):
        remote.materialize(["z"])
    remote.free()
    remote.free()
    assert shelf.held == {}
    with pytest.raises(RemoteError, match="was freed"):
        remote.materialize()
    assert repr(remote) == "RemoteBatch: 2 rows, columns ['a', 'b', 's'], freed"
    with pytest.raises(ColumnTypeError, match="stage got a int"):
        RemoteBatch.stage(3, shelf)  # type: ignore[arg-type]


def test_staged_batches_join_futures() -> None:
    shelf = Shelf()
    remote = RemoteBatch.stage(numbered(0, 2), shelf)
    later = DataProtoFuture.concat([remote, produced(shelf, (2, 4)), remote.slice(1)])
    assert later.get()["i"].tolist() == [0, 1, 2, 3, 1]
    other = RemoteBatch.stage(DataProto.from_dict({"w": torch.arange(2.0)}), shelf)
    assert remote.future().union(other).columns() == ["i", "s", "w"]


def test_a_header_is_read_once_for_all_pieces() -> None:
    shelf = Shelf()
    future = produced(shelf, (0, 3), (3, 8))
    first, second = future.chunk(2)
    assert [len(first), len(second), second.select(["i"]).rows(), future.rows()] == [4, 4, 4, 8]
    assert shelf.asked == ["h0", "h2"]


def test_a_part_by_name() -> None:
    shelf = Shelf()
    part = Part(Header("any", 2, ("i",)), shelf.put(numbered(0, 2)))
    assert DataProtoFuture.of(shelf, [part]).headers() == [Header("any", 2, ("i",))]


@given(st.lists(st.integers(0, 7), max_size=10) | st.permutations(range(8)), st.integers(0, 8), st.integers(0, 8))
def test_rows_in_any_order_fetch_the_parts_that_they_are_in(order: list[int], first: int, last: int) -> None:
    shelf = Shelf()
    future = produced(shelf, (0, 3), (3, 5), (5, 8))
    parts = {row: ("h1", "h3", "h5")[(row >= 3) + (row >= 5)] for row in range(8)}
    moved = future.select_idxs(order).slice(first, last)
    expected = order[first:last]
    found = moved.get()
    assert found["i"].tolist() == expected
    assert list(found["s"]) == [str(row) for row in expected]
    assert set(shelf.fetched) == ({parts[row] for row in expected} or {"h1"})
    assert len(moved) == len(expected)
    back = pickle.loads(pickle.dumps(future.select_idxs(order).select_idxs(range(len(order))[::-1])))
    back._store = shelf
    assert back.get()["i"].tolist() == order[::-1]
    narrow = future.union(future.select([])).select_idxs(order).select(["i"])
    assert (narrow.get()["i"].tolist(), narrow.columns()) == (order, ["i"])


def test_rows_that_are_not_there() -> None:
    future = produced(Shelf(), (0, 3))
    with pytest.raises(RowIndexError, match="select_idxs got the index -1; expected rows counted from the first"):
        future.select_idxs([2, -1])
    with pytest.raises(RowIndexError, match="row 3 was selected; there are 3"):
        future.select_idxs([0, 3]).get()


def stored_apart(shelf: Shelf, batch: DataProto, *names: str) -> Part:
    tensors = list(header_of(batch.select(None, [])).columns)
    columns = {name: shelf.put(batch.select([name], []) if name in tensors else None) for name in names}
    others = [name for name in tensors if name not in names]
    frame = batch.select([], [])
    return Part(shelf.put(header_of(batch)), shelf.put(frame), columns, shelf.put(batch.select(others)))


def test_only_what_is_asked_for_is_fetched_of_what_was_stored_apart() -> None:
    shelf = Shelf()
    batches = [
        DataProto.from_dict({name: torch.arange(3) + at for name in "xyz"}, {"s": [str(at)] * 3}, {"k": 1})
        for at in range(2)
    ]
    whole = DataProto.concat(batches)
    parts = [stored_apart(shelf, batch, "x", "y") for batch in batches]
    for future in (DataProtoFuture.of(shelf, parts), pickle.loads(pickle.dumps(DataProtoFuture.of(shelf, parts)))):
        future._store = shelf
        expected: dict[tuple[str, ...], list[Any]] = {
            ("x",): [[part.payload, part.columns["x"]] for part in parts],  # type: ignore[index]
            ("y", "s"): [[part.payload, part.rest, part.columns["y"]] for part in parts],  # type: ignore[index]
            ("z",): [[part.payload, part.rest] for part in parts],
        }
        for names, handles in expected.items():
            del shelf.fetched[:]
            tensors = [name for name in names if name != "s"]
            assert future.select(names).get().equals(whole.select(tensors, ["s"] if "s" in names else []))
            assert shelf.fetched == [handle for each in handles for handle in each]
        assert future.get().equals(whole)
        assert future.slice(2, 5).select(["x"]).get()["x"].tolist() == [2, 1, 2]


def test_what_was_to_be_stored_apart_and_is_not_there() -> None:
    shelf = Shelf()
    future = DataProtoFuture.of(shelf, [stored_apart(shelf, numbered(0, 3), "i", "none")])
    assert future.get().equals(numbered(0, 3))
    assert future.select(["i"]).get()["i"].tolist() == [0, 1, 2]
    with pytest.raises(MissingKeyError, match="there is no column 'none', which was to be stored apart"):
        future.select(["none"]).get()
    with pytest.raises(MissingKeyError, match="there is no column 'other'"):
        future.select(["other"]).get()
