from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from fanfold.worker import GroupUsageError, InlineBackend, WorkerGroup, WorkerLostError
from fanfold.worker.health import lost_ranks_error
from fanfold.worker.testing import Fault, FaultyBackend, Probe


class Blind:
    """A backend that cannot say which ranks are gone."""

    name = "blind"

    def __init__(self) -> None:
        inner = InlineBackend()
        self.start, self.place, self.call = inner.start, inner.place, inner.call
        self.wait, self.fetch, self.stop = inner.wait, inner.fetch, inner.stop


def _looking() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fanfold-look-after")]


def _until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def _dying() -> WorkerGroup[Probe]:
    return WorkerGroup([3], Probe, backend=FaultyBackend(InlineBackend(), [Fault(1, "dies", "add")]))


def test_report_names_all() -> None:
    error = lost_ranks_error("<group>", {2: WorkerLostError("rank 2 went"), 0: WorkerLostError("rank 0 went")})
    assert str(error) == "<group> has lost 2 of its ranks\nrank 0 went\nrank 2 went"
    assert error.ranks == (0, 2)


def test_thread_is_a_daemon_that_can_be_stopped_and_replaced() -> None:
    with WorkerGroup([1], Probe) as group:
        group.start_worker_aliveness_check(3600)
        group.start_worker_aliveness_check(3600)
        assert len(_looking()) == 1
        assert all(thread.daemon for thread in threading.enumerate() if thread.name in _looking())
        group.stop_worker_aliveness_check()
        group.stop_worker_aliveness_check()
        assert _looking() == []
        group.start_worker_aliveness_check(3600)
    assert _looking() == []


def test_thread_ends_with_a_group_that_nobody_holds() -> None:
    group = WorkerGroup([1], Probe)
    group.start_worker_aliveness_check(0.01)
    del group
    gc.collect()
    _until(lambda: not _looking())


def test_function_is_told_once() -> None:
    told: list[WorkerLostError] = []
    with _dying() as group:
        group.start_worker_aliveness_check(0.005, on_lost=told.append)
        with pytest.raises(WorkerLostError):
            group.add(1)
        _until(lambda: told)
        _until(lambda: not _looking())
        assert [error.ranks for error in told] == [(1,)]


def test_next_call_raises_the_report() -> None:
    with _dying() as group:
        group.start_worker_aliveness_check(0.005, on_lost="next_call")
        with pytest.raises(WorkerLostError):
            group.add(1)
        _until(lambda: not _looking())
        for _ in range(2):
            with pytest.raises(WorkerLostError, match="has lost 1 of its ranks"):
                group.who()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_lost": "panic"}, "'interrupt', 'next_call' or a function"),
        ({"every_n_seconds": 0}, "more than 0"),
        ({"every_n_seconds": -1}, "more than 0"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with WorkerGroup([1], Probe) as group, pytest.raises(GroupUsageError, match=message):
        group.start_worker_aliveness_check(**options)


def test_backend_that_cannot_say() -> None:
    with WorkerGroup([1], Probe, backend=Blind()) as group:
        with pytest.raises(GroupUsageError, match="the blind backend cannot say which ranks are gone"):
            group.start_worker_aliveness_check()
        assert "the blind backend cannot look into its ranks" in group.why_stuck()


INTERRUPTED = """
import os, signal, sys, time
signal.signal(signal.SIGINT, getattr(signal, sys.argv[1]))
def theirs(*_): pass
signal.signal(signal.SIGRTMAX, theirs)
from fanfold.worker import WorkerGroup
from fanfold.worker.testing import Probe
group = WorkerGroup([2], Probe, backend="processes")
group.start_worker_aliveness_check(0.05)
os.kill(group.execute(lambda worker: __import__("os").getpid())[1], signal.SIGKILL)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("woken", signal.getsignal(signal.SIGRTMAX) is theirs)
    raise
"""


@pytest.mark.parametrize("ctrl_c", ["default_int_handler", "SIG_IGN"])
def test_main_thread_is_woken_as_by_ctrl_c(ctrl_c: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, ctrl_c]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "woken True\n"
    assert done.returncode != 0
    assert "has lost 1 of its ranks" in done.stderr
    assert "killed by SIGKILL" in done.stderr


NOT_FROM_HERE = """
import signal, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
from fanfold.worker import GroupUsageError, WorkerGroup
from fanfold.worker.testing import Probe
group = WorkerGroup([1], Probe, backend="processes")
def check():
    try:
        group.start_worker_aliveness_check(0.05)
    except GroupUsageError as error:
        print(error)
thread = threading.Thread(target=check)
thread.start()
thread.join()
"""


def test_who_cannot_be_woken_is_told_so() -> None:
    command = [sys.executable, "-c", NOT_FROM_HERE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "cannot wake the main thread: this process ignores Ctrl-C" in done.stdout
    assert "start the check on the main thread, or take on_lost='next_call'" in done.stdout
