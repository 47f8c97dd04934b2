"""Any interleaving of calls, cancels, failures, waits, recoveries and closes ends well and leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from typing import Any

from fanfold.worker import (
    BusyRankError,
    Call,
    CallCancelledError,
    GroupCallError,
    GroupUsageError,
    WaitTimeoutError,
    WorkerGroup,
    WorkerLostError,
    address_book,
    wait,
)
from gates import GATES, Gated, gate
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

RANKS = 3
SHORT = 0.01
some_ranks = st.sets(st.integers(0, RANKS - 1)).map(lambda ranks: tuple(sorted(ranks)))
_names = itertools.count()


class Interleavings(RuleBasedStateMachine):
    backend = "threads"
    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.group = WorkerGroup([RANKS], Gated, backend=self.backend, call_timeout=30)
        self.closed = False
        self.open_gates: list[str] = []
        self.handles: list[weakref.ref[Any]] = []
        self.made: dict[int, tuple[Call, Any]] = {}
        self.numbers = itertools.count()

    def submit(self, method: str, *args: Any, ranks: tuple[int, ...]) -> Call | None:
        bound = getattr(self.group, method).options(blocking=False, timeout=SHORT if self.open_gates else 30)
        try:
            call: Call = (bound.options(ranks=ranks) if ranks else bound)(*args)
        except GroupUsageError:
            assert self.closed
            return None
        except BusyRankError:
            assert self.open_gates
            return None
        assert not self.closed
        self.handles += [weakref.ref(handle) for handle in call]
        return call

    @rule(target=calls, ranks=some_ranks, value=st.integers())
    def quick(self, ranks: tuple[int, ...], value: int) -> Any:
        call = self.submit("quick", value, ranks=ranks)
        return self.expecting(call, [value] * (len(ranks) or RANKS))

    @rule(target=calls, ranks=some_ranks, failing=some_ranks)
    def failing(self, ranks: tuple[int, ...], failing: tuple[int, ...]) -> Any:
        call = self.submit("fail", failing, ranks=ranks)
        called = ranks or tuple(range(RANKS))
        wanted: Any = KeyError if set(failing) & set(called) else list(called)
        return self.expecting(call, wanted)

    @rule(target=calls, ranks=some_ranks)
    def waiting(self, ranks: tuple[int, ...]) -> Any:
        if self.backend == "inline":
            return multiple()
        name = f"machine-{next(_names)}"
        call = self.submit("wait", name, ranks=ranks)
        if call is not None:
            self.open_gates.append(name)
        return self.expecting(call, [name] * (len(ranks) or RANKS))

    def expecting(self, call: Call | None, wanted: Any) -> Any:
        number = next(self.numbers)  # hypothesis holds the number only, so that the call can go
        if call is not None:
            self.made[number] = (call, wanted)
        return number

    @rule()
    def open_all_gates(self) -> None:
        while self.open_gates:
            gate(self.open_gates.pop()).set()

    @rule(number=calls)
    def cancel(self, number: int) -> None:
        for call in self.calls_of([number]):
            found = call.cancel()
            assert set(found.values()) <= {"dropped", "running", "finished"}
            assert len(found) == len(call)

    def calls_of(self, numbers: list[int]) -> list[Call]:
        return [self.made[number][0] for number in numbers if number in self.made]

    @rule(number=calls, timeout=st.sampled_from([0, SHORT]))
    def result(self, number: int, timeout: float) -> None:
        if number in self.made:
            self.check(number, timeout)

    def check(self, number: int, timeout: float | None) -> None:
        call, wanted = self.made[number]
        try:
            assert call.result(timeout) == wanted
        except CallCancelledError:
            assert call._cancelled
        except WorkerLostError:
            assert self.closed or any(member is not self.group._members[member.rank] for member in call._members)
        except GroupCallError as error:
            assert isinstance(error, wanted)  # noqa: PT017  # what else may be raised is told apart above
        except WaitTimeoutError:
            assert not call.deadline.left() or timeout is not None
        else:
            assert call.done()

    @rule(number=calls)
    def so_far(self, number: int) -> None:
        for call in self.calls_of([number]):
            assert len(call.so_far()) <= len(call)

    @rule(numbers=st.lists(calls, max_size=3, unique=True))
    def wait_for_some(self, numbers: list[int]) -> None:
        several = self.calls_of(numbers)
        done, rest = wait(several, count=1, timeout=SHORT)
        assert len(done) + len(rest) == len(several)
        assert all(call.done() for call in done)

    @rule(ranks=some_ranks)
    def recover(self, ranks: tuple[int, ...]) -> None:
        try:
            assert self.group.recover(ranks) == list(ranks)
        except GroupUsageError:
            assert self.closed

    @rule()
    def close(self) -> None:
        self.open_all_gates()
        self.group.close()
        self.closed = True

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert self.group._ranks.closed is self.closed

    def teardown(self) -> None:
        self.open_all_gates()
        self.each_call_ends()
        self.group.close()
        self.leaves_nothing()

    def each_call_ends(self) -> None:
        for number in self.made:
            self.check(number, None)

    def leaves_nothing(self) -> None:
        ranks, prefix = weakref.ref(self.group._ranks), self.group.name_prefix
        GATES.clear()
        self.made.clear()
        del self.group
        gc.collect()
        assert ranks() is None
        assert [handle() for handle in self.handles if handle() is not None] == []
        assert not any(prefix in thread.name for thread in threading.enumerate())
        assert not address_book._ranks


class InlineInterleavings(Interleavings):
    backend = "inline"


PATIENT = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestThreads = Interleavings.TestCase
TestThreads.settings = PATIENT
TestInline = InlineInterleavings.TestCase
TestInline.settings = PATIENT
