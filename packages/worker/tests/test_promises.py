from __future__ import annotations

import pickle
from typing import Any

import pytest
from fanfold.dispatch import Dispatch, register, register_batch_type
from fanfold.worker import Call, GroupUsageError, WaitTimeoutError, Worker, WorkerGroup, gather, wait
from gates import gate


class Table:
    """A batch whose library knows values that are not here yet."""

    def __init__(self, **columns: list[int]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))


class LaterTable:
    """Rows a to b of a table in a store."""

    def __init__(self, store: Any, parts: Any, start: int = 0, stop: int | None = None) -> None:
        self.store, self.parts, self.start, self.stop = store, list(parts), start, stop

    def header(self) -> dict[str, Any]:
        return self.store.header(self.parts[0][0], None)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        stop = self.header()["rows"] if self.stop is None else self.stop
        return int(stop) - self.start

    def get(self, timeout: float | None = None) -> Table:
        (table,) = self.store.fetch([self.parts[0][1]], timeout)
        return _rows(table, self.start, len(table) if self.stop is None else self.stop)

    result = get


def _rows(table: Table, start: int, stop: int) -> Table:
    return Table(**{name: column[start:stop] for name, column in table.columns.items()})


def _concat(tables: Any) -> Table:
    return Table(**{name: [x for table in tables for x in table.columns[name]] for name in tables[0].columns})


register_batch_type(
    Table, rows=_rows, concat=_concat, columns=lambda table: list(table.columns), nbytes=len, lazy=LaterTable
)
register_batch_type(
    LaterTable,
    rows=lambda later, start, stop: LaterTable(later.store, later.parts, later.start + start, later.start + stop),
    concat=lambda parts: parts[0],
)


class Doubler(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def double(self, table: Table) -> Table:
        return Table(x=[2 * x for x in table.columns["x"]], rank=[self.rank] * len(table))

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def numbers(self, table: Table) -> int:
        return self.rank

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def total(self, table: Table) -> list[int]:
        return [sum(table.columns["x"])]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def gated(self, table: Table, name: str) -> Table:
        while not gate(name).wait(0.005):
            pass
        return table

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def plain(self) -> int:
        return self.rank


@pytest.fixture(name="group", scope="module", params=["inline", "threads"])
def _group(request: pytest.FixtureRequest) -> Any:
    with WorkerGroup([2], Doubler, backend=request.param) as group:
        yield group


def test_type_of_the_divided_argument_decides(group: WorkerGroup[Doubler]) -> None:
    later = group.double(Table(x=[1, 2, 3]))
    assert isinstance(later, LaterTable)
    assert later.get().columns == {"x": [2, 4, 6], "rank": [0, 0, 1]}
    kind = f"{Table.__module__}.Table"
    assert later.header() == {"type": kind, "rows": 3, "columns": ["x", "rank"], "nbytes": 3}
    assert isinstance(group.plain(), Call)


def test_it_is_an_argument_for_the_next_call_whole_and_in_parts(group: WorkerGroup[Doubler]) -> None:
    later = group.double(Table(x=[1, 2, 3]))
    assert group.double(later).get().columns["x"] == [4, 8, 12]
    assert group.total(later) == [[6], [6]]
    assert group.double(LaterTable(later.store, later.parts, 1, 3)).get().columns["x"] == [8, 12]


def test_failure_comes_when_it_is_asked_for(group: WorkerGroup[Doubler]) -> None:
    later = group.double(Table(y=[1, 2]))
    with pytest.raises(KeyError, match="x"):
        later.get()


def test_results_without_rows_have_no_header(group: WorkerGroup[Doubler]) -> None:
    later = group.numbers(Table(x=[1, 2]))
    with pytest.raises(GroupUsageError, match=r"Doubler\.numbers returned builtins\.list, which has no rows"):
        len(later)
    assert later.store.call.result() == [0, 1]


def test_it_is_waited_for_as_its_call_is() -> None:
    with WorkerGroup([2], Doubler, backend="threads") as group:
        late = group.gated.options(timeout=60)(Table(x=[1, 2]), "several")
        here = WorkerGroup([1], Doubler).double(Table(x=[3]))
        assert wait([late, here], timeout=30) == ([here], [late])
        with pytest.raises(WaitTimeoutError, match=r"2 calls .* Doubler\.gated"):
            gather(late, here, timeout=0.05)
        gate("several").set()
        assert [table.columns["x"] for table in gather([late, here], timeout=30)] == [[1, 2], [6]]
        assert group.double.options(timeout=3600)(late).deadline.seconds <= 60
        failing = group.double(Table(y=[1, 2]))
        with pytest.raises(KeyError, match="x"):
            gather(failing, late)
        part = LaterTable(late.store, late.parts, 1, 2)
        assert gather(part)[0].columns["x"] == [2]
        with pytest.raises(GroupUsageError, match="use gather"):
            wait([part])


def test_waits_have_limits() -> None:
    with WorkerGroup([2], Doubler, backend="threads") as group:
        later = group.gated(Table(x=[1, 2]), "promise")
        with pytest.raises(WaitTimeoutError):
            later.get(0.01)
        gate("promise").set()
        assert later.get(30).columns == {"x": [1, 2]}


def test_store_says_what_it_does_not_do(group: WorkerGroup[Doubler]) -> None:
    later = group.double(Table(x=[1]))
    later.store.free([])
    with pytest.raises(GroupUsageError, match="stores no Table for later calls"):
        later.store.put(Table())
    with pytest.raises(TypeError, match=r"the result of Doubler\.double that is not here yet stays in its process"):
        pickle.dumps(later.store)
