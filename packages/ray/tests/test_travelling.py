from __future__ import annotations

import pickle
import threading

import pytest
from fanfold.ray.travelling import errors_travel, portable_error
from fanfold.worker import RemoteError
from ray import cloudpickle
from sample_workers import StubbornError


def sent(error: Exception) -> Exception:
    arrived: Exception = cloudpickle.loads(cloudpickle.dumps(portable_error(error)))
    return arrived


def test_what_can_travel_is_left_alone() -> None:
    error = KeyError("missing")
    assert portable_error(error) is error


def test_an_error_with_a_constructor_of_its_own_arrives() -> None:
    arrived = sent(StubbornError(7, place="here"))
    assert isinstance(arrived, StubbornError)
    assert str(arrived) == "code 7 at here"
    assert arrived.code == 7
    assert arrived.args == ("code 7 at here",)
    again = pickle.loads(pickle.dumps(arrived))
    assert isinstance(again, StubbornError)
    assert again.code == 7


def test_what_cannot_be_pickled_at_all_arrives_in_words() -> None:
    error = ValueError("bad")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    arrived = sent(error)
    assert isinstance(arrived, RemoteError)
    assert str(arrived) == "builtins.ValueError: bad"


def test_traceback_and_cause_are_those_of_the_original() -> None:
    def fail() -> None:
        raise StubbornError(1, place="deep") from ValueError("root")

    with pytest.raises(StubbornError) as caught, errors_travel():
        fail()
    assert caught.traceback[-1].name == "fail"
    assert isinstance(caught.value.__cause__, ValueError)
