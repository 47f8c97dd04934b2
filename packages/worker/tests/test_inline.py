from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from fanfold.dispatch import Dispatch, current_call, register, register_batch_type
from fanfold.worker import ReadOnlyError, Worker, WorkerGroup, current_rank


class Ledger:
    """A batch that can tell when it is written into."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def freeze(batch: Ledger) -> Any:
        before = list(batch.rows)
        return lambda: (
            None if batch.rows == before else f"row {next(i for i, row in enumerate(batch.rows) if row != before[i])}"
        )


register_batch_type(
    Ledger,
    rows=lambda batch, start, stop: Ledger(batch.rows[start:stop]),
    concat=lambda parts: Ledger([row for part in parts for row in part.rows]),
    freeze=Ledger.freeze,
)


class Reader(Worker):
    def __init__(self) -> None:
        super().__init__()
        os.environ["FANFOLD_TEST_OWN"] = f"of rank {self.rank}"

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, inputs="readonly")
    def total(self, rows: Ledger, *, spoil: bool = False) -> Ledger:
        if spoil:
            rows.rows[-1] = -1
        return Ledger([sum(rows.rows)])

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def write(self, rows: Ledger) -> Ledger:
        rows.rows[0] = -1
        return rows

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def where(self) -> tuple[Any, ...]:
        return threading.get_ident(), os.environ.get("FANFOLD_TEST_OWN"), current_rank().rank, current_call().method

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nested(self) -> list[Any]:
        with WorkerGroup([2], Reader) as inner:
            return [*(entry[2] for entry in inner.where()), int(os.environ["RANK"]), os.environ["WORLD_SIZE"]]


def test_ranks_run_here_one_after_the_other() -> None:
    with WorkerGroup([3], Reader) as group:
        told = group.where()
    assert {entry[0] for entry in told} == {threading.get_ident()}
    assert [entry[1:] for entry in told] == [(f"of rank {rank}", rank, "where") for rank in range(3)]
    assert "FANFOLD_TEST_OWN" not in os.environ


@pytest.mark.parametrize("backend", ["inline", "threads"])
def test_write_into_a_read_only_batch_is_noticed(backend: str) -> None:
    with WorkerGroup([2], Reader, backend=backend) as group:
        mine = Ledger([1, 2, 3])
        assert group.total(mine).rows == [3, 3]
        with pytest.raises(
            ReadOnlyError, match=r"total is registered with inputs='readonly' and wrote into its argument .*: row"
        ):
            group.total(mine, spoil=True)
        assert mine.rows == [1, 2, 3]
        assert group.write(mine).rows == [-1, 2, -1]
        assert mine.rows == [1, 2, 3]


def test_rank_may_drive_a_group_of_its_own() -> None:
    with WorkerGroup([3], Reader) as group:
        assert group.nested() == [[0, 1, rank, "3"] for rank in range(3)]


def test_drivers_in_several_threads_take_turns() -> None:
    with WorkerGroup([3], Reader) as first, WorkerGroup([3], Reader) as second:
        wrong: list[Any] = []

        def drive(group: WorkerGroup[Reader]) -> None:
            for _ in range(50):
                told = [entry[1:3] for entry in group.where()]
                if told != [(f"of rank {rank}", rank) for rank in range(3)]:
                    wrong.append(told)

        threads = [threading.Thread(target=drive, args=(group,)) for group in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_keyboard_interrupt_reaches_the_driver_and_the_environment_is_restored() -> None:
    before = dict(os.environ)

    def interrupt(worker: Any) -> None:
        raise KeyboardInterrupt

    with WorkerGroup([2], Reader) as group:
        with pytest.raises(KeyboardInterrupt):
            group.execute(interrupt)
        assert dict(os.environ) == before
        assert [entry[2] for entry in group.where()] == [0, 1]


def test_error_is_the_very_object_so_that_a_debugger_finds_its_frames() -> None:
    with WorkerGroup([1], Reader) as group:
        with pytest.raises(ZeroDivisionError) as caught:
            group.execute(_divide)
        frames, trace = [], caught.value.__cause__.__traceback__ if caught.value.__cause__ else None
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        assert frames[-1] == "_divide"


def _divide(worker: Any) -> float:
    return 1 / 0
