from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import on_ranks
import pytest
from fanfold.worker import (
    CallCancelledError,
    ClassWithInitArgs,
    GroupUsageError,
    StartOrder,
    WaitTimeoutError,
    WorkerGroup,
    WorkerLostError,
    relay,
)
from fanfold.worker.limits import Deadline
from fanfold.worker.testing import Probe
from fanfold.worker.testing.workers import Rendezvous
from fanfold.worker.visiting import VisitingBackend, arrive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(name="owner")
def _owner(tmp_path: Path) -> Iterator[WorkerGroup[Any]]:
    recipe = ClassWithInitArgs(Rendezvous, str(tmp_path))
    with WorkerGroup([2], recipe, backend="processes", name_prefix="own-") as group:
        yield group


@pytest.fixture(name="visitor")
def _visitor(owner: WorkerGroup[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerGroup[Any]]:
    """The same group as another process sees it: what is at home, is not, while it arrives."""
    sent = pickle.dumps(owner)
    with monkeypatch.context() as away:
        away.setattr("fanfold.worker.visiting.os.getpid", lambda: -1)
        group = pickle.loads(sent)
    assert isinstance(group._backend, VisitingBackend)
    yield group
    group._backend._line.hang_up()


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_at_home_it_is_the_group_itself(owner: WorkerGroup[Any]) -> None:
    copy = pickle.loads(pickle.dumps(owner[1:]))
    assert copy._backend is owner._backend
    assert copy.ranks == (1,)
    assert copy.process() == owner.process()[1:]


def test_another_process_calls_the_ranks(owner: WorkerGroup[Any]) -> None:
    code = """
        import pickle, sys
        group = pickle.load(sys.stdin.buffer)
        print(group.process(), group.execute_all("process") == group.process(), group.worker_names)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], input=pickle.dumps(owner), check=True, capture_output=True
    )
    assert done.stdout.decode() == f"{owner.process()} True {owner.worker_names}\n"


def test_group_travels_on_from_where_it_arrived(owner: WorkerGroup[Any]) -> None:
    with (
        WorkerGroup([1], Probe, backend="processes") as first,
        WorkerGroup([1], Probe, backend="processes") as second,
    ):
        told = first.execute(on_ranks.pass_on, second, owner)
    assert told == [[owner.process()]]


def test_large_values_and_errors(visitor: WorkerGroup[Any]) -> None:
    values = [bytearray(b"ab") * 200_000, b"small"]
    assert visitor.execute(on_ranks.lengths, *values) == [[400_000, 5]] * 2
    assert visitor.execute(on_ranks.reversed_bytes, values[0]) == [bytearray(b"ba") * 200_000] * 2
    with pytest.raises(KeyError, match="shard 1") as caught:
        visitor.fail_or_wait.options(ranks=[1])(1, "never")
    assert "raise KeyError" in caught.value.failures[0].trace  # type: ignore[attr-defined]


def test_where_ranks_are_is_what_their_driver_says(visitor: WorkerGroup[Any], tmp_path: Path) -> None:
    call = visitor.wait_for.options(blocking=False)("go", [1])
    _until(lambda: call.so_far() and "wait_for" in visitor.why_stuck())
    idle, busy = visitor.why_stuck().splitlines()[1:3]
    assert " - " in idle
    assert "wait_for" in busy
    with pytest.raises(WaitTimeoutError):
        call.result(0.01)
    (tmp_path / "go").touch()
    assert call.result(30) == ["go", "go"]


def test_cancelling(visitor: WorkerGroup[Any], tmp_path: Path) -> None:
    first = visitor.wait_for.options(blocking=False)("go")
    second = visitor.log_call(1)
    _until(lambda: "wait_for" in visitor.why_stuck())
    assert second.cancel() == {0: "dropped", 1: "dropped"}
    assert first.cancel() == {0: "running", 1: "running"}
    with pytest.raises(CallCancelledError):
        first.result()
    assert visitor.log_call(2).result(30) == [2, 2]
    assert (tmp_path / "go-cancelled-0").exists()
    assert not (tmp_path / "began-1-0").exists()


def test_lost_and_renewed_ranks(owner: WorkerGroup[Any], visitor: WorkerGroup[Any], tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    before = visitor.process()
    assert visitor._backend.lost(visitor._members) == {}  # type: ignore[attr-defined]
    with pytest.raises(WorkerLostError, match="killed by SIGKILL") as caught:
        visitor.die(1, "go")
    assert caught.value.log[-1] == "my last words"
    assert list(visitor._backend.lost(visitor._members)) == [1]  # type: ignore[attr-defined]
    assert owner.recover() == [1]
    after = visitor.process()
    assert (after[0], after[1] != before[1]) == (before[0], True)


def test_after_the_end(owner: WorkerGroup[Any], visitor: WorkerGroup[Any]) -> None:
    sent = pickle.dumps(visitor)
    waiting = visitor.wait_for.options(blocking=False)("never", patience=3600)
    owner.close()
    with pytest.raises(WorkerLostError):
        waiting.result(30)
    _until(lambda: visitor._backend._line.over)  # type: ignore[attr-defined]
    with pytest.raises(WorkerLostError, match="the group was closed, or its driver is gone"):
        visitor.process()
    assert list(visitor._backend.lost(visitor._members)) == [0, 1]  # type: ignore[attr-defined]
    assert "did not answer" in visitor.why_stuck(limit=0.1)
    code = f"import pickle\ntry: pickle.loads({sent!r})\nexcept ValueError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "cannot be reached from here" in done.stdout


def test_a_visitor_starts_and_ends_nothing(owner: WorkerGroup[Any], visitor: WorkerGroup[Any]) -> None:
    recipe = ClassWithInitArgs(Probe)
    with pytest.raises(GroupUsageError, match="starts none of its own"):
        visitor._backend.start(StartOrder("x", recipe, [], []), Deadline(1, "nothing"))
    with pytest.raises(GroupUsageError, match="started by others"):
        visitor.recover()
    visitor.close()
    assert len(owner.process()) == 2


def test_nothing_is_left(owner: WorkerGroup[Any], visitor: WorkerGroup[Any]) -> None:
    visitor.process()
    owner.close()
    names = ("fanfold-relay", "fanfold-visit", "fanfold-visit-answers", "fanfold-visitor")
    _until(lambda: not [thread for thread in threading.enumerate() if thread.name in names])


def test_other_users_are_not_let_in(owner: WorkerGroup[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        assert relay.is_own_user(here)
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        assert not relay.is_own_user(here)
    address = pickle.loads(pickle.dumps(owner))._backend.ticket(owner._members)[1][0]
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(address)
        stranger.settimeout(30)
        assert stranger.recv(1) == b""


def test_ticket_arrives_once_for_all_groups_of_a_process(owner: WorkerGroup[Any], visitor: WorkerGroup[Any]) -> None:
    take, ticket = visitor._backend.ticket(visitor._members)  # type: ignore[attr-defined]
    assert take is arrive
    assert ticket[2] == tuple((member.rank, member.name, member.node, member.pid) for member in owner._members)
