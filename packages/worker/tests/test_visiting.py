from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
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


@contextmanager
def _started(folder: Path) -> Iterator[WorkerGroup[Any]]:
    recipe = ClassWithInitArgs(Rendezvous, str(folder))
    with WorkerGroup([2], recipe, backend="processes") as group:
        yield group


@contextmanager
def _seen_from_elsewhere(owner: WorkerGroup[Any]) -> Iterator[WorkerGroup[Any]]:
    """The same group as another process sees it: what is at home, is not, while it arrives."""
    sent = pickle.dumps(owner)
    with pytest.MonkeyPatch.context() as away:
        away.setattr("fanfold.worker.visiting.os.getpid", lambda: -1)
        group = pickle.loads(sent)
    assert isinstance(group._backend, VisitingBackend)
    yield group
    group._backend._line.hang_up()


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("visiting")


@pytest.fixture(name="owner", scope="module")
def _owner(folder: Path) -> Iterator[WorkerGroup[Any]]:
    with _started(folder) as group:
        yield group


@pytest.fixture(name="visitor", scope="module")
def _visitor(owner: WorkerGroup[Any]) -> Iterator[WorkerGroup[Any]]:
    with _seen_from_elsewhere(owner) as group:
        yield group


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


def test_where_ranks_are_is_what_their_driver_says(visitor: WorkerGroup[Any], folder: Path) -> None:
    call = visitor.wait_for.options(blocking=False)("where", [1])

    def one_is_in_it() -> bool:
        idle, busy = visitor.why_stuck().splitlines()[1:3]
        return " - " in idle and "wait_for" in busy

    _until(one_is_in_it)
    with pytest.raises(WaitTimeoutError):
        call.result(0.01)
    (folder / "where").touch()
    assert call.result(30) == ["where", "where"]


def test_cancelling(visitor: WorkerGroup[Any], folder: Path) -> None:
    first = visitor.wait_for.options(blocking=False)("cancel")
    second = visitor.log_call(1)
    _until(lambda: "wait_for" in visitor.why_stuck())
    assert second.cancel() == {0: "dropped", 1: "dropped"}
    assert first.cancel() == {0: "running", 1: "running"}
    with pytest.raises(CallCancelledError):
        first.result()
    assert visitor.log_call(2).result(30) == [2, 2]
    assert (folder / "cancel-cancelled-0").exists()
    assert not (folder / "began-1-0").exists()


def test_lost_and_renewed_ranks(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with _started(tmp_path) as owner, _seen_from_elsewhere(owner) as visitor:
        before, backend = visitor.process(), visitor._backend
        assert isinstance(backend, VisitingBackend)
        assert backend.lost(visitor._members) == {}
        with pytest.raises(WorkerLostError, match="killed by SIGKILL") as caught:
            visitor.die(1, "go")
        assert caught.value.log[-1] == "my last words"
        assert list(backend.lost(visitor._members)) == [1]
        assert owner.recover() == [1]
        after = visitor.process()
        assert (after[0], after[1] != before[1]) == (before[0], True)


@pytest.mark.parametrize("has_begun", [False, True])
def test_after_the_end(tmp_path: Path, has_begun: bool) -> None:
    with _started(tmp_path) as owner, _seen_from_elsewhere(owner) as visitor:
        sent, backend = pickle.dumps(visitor), visitor._backend
        assert isinstance(backend, VisitingBackend)
        waiting = visitor.wait_for.options(blocking=False)("never", patience=3600)
        _until(lambda: not has_begun or all("wait_for" in line for line in visitor.why_stuck().splitlines()[1:3]))
        owner.close()
        with pytest.raises(WorkerLostError):
            waiting.result(30)
        _until(lambda: backend._line.over)
        with pytest.raises(WorkerLostError, match="the group was closed, or its driver is gone"):
            visitor.process()
        assert list(backend.lost(visitor._members)) == [0, 1]
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
    with _seen_from_elsewhere(owner) as another:
        another.close()
    assert len(owner.process()) == 2


def test_nothing_is_left(tmp_path: Path) -> None:
    names = ("fanfold-relay", "fanfold-visit", "fanfold-visit-answers", "fanfold-visitor")
    before = set(threading.enumerate())  # some of which may be ending
    with _started(tmp_path) as owner, _seen_from_elsewhere(owner) as visitor:
        visitor.process()
        new = [thread for thread in threading.enumerate() if thread not in before and thread.name in names]
        assert sorted(thread.name for thread in new) == sorted(names)
    _until(lambda: not any(thread.is_alive() for thread in new))


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
