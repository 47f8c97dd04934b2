from __future__ import annotations

import threading

import pytest
from fanfold.dispatch import CallContext, FanfoldError, NoCallError, current_call, serving


def test_there_is_no_call_outside_of_one() -> None:
    with pytest.raises(NoCallError, match="set only while a backend runs a method") as caught:
        current_call()
    assert isinstance(caught.value, FanfoldError)
    assert isinstance(caught.value, LookupError)


def test_a_backend_serves_a_call_and_calls_nest() -> None:
    outer, inner = CallContext("train", 1, 4, padding=2), CallContext("log_prob", 1, 4)
    with serving(outer):
        with serving(inner):
            assert current_call() == CallContext("log_prob", 1, 4, 0)
        assert current_call() is outer
    with pytest.raises(NoCallError):
        current_call()


def test_a_call_ends_with_an_error_too() -> None:
    with pytest.raises(RuntimeError, match="boom"), serving(CallContext("train", 0, 1)):
        raise RuntimeError("boom")
    with pytest.raises(NoCallError):
        current_call()


def test_threads_serve_calls_of_their_own() -> None:
    seen: dict[int, int] = {}
    both = threading.Barrier(2, timeout=30)

    def rank(number: int) -> None:
        with serving(CallContext("train", number, 2)):
            both.wait()
            seen[number] = current_call().rank

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert seen == {0: 0, 1: 1}
