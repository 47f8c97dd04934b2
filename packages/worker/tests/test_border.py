from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
from fanfold.worker import NotPicklableError, RemoteError
from fanfold.worker.border import across, pack, pack_now, pickled, unpack
from fanfold.worker.travelling import as_it_arrives, for_travel, remote_error
from hypothesis import given
from hypothesis import strategies as st

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


class Buffer:
    """Hands its memory over out of band, as arrays do."""

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Buffer, (pickle.PickleBuffer(self.data),)


class FussyError(Exception):
    def __init__(self, *, shard: int) -> None:
        super().__init__(f"shard {shard}")
        self.shard = shard


class LockedError(Exception):
    def __init__(self) -> None:
        super().__init__("has a lock")
        self.lock = threading.Lock()


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@given(plain)
def test_values_arrive_equal(value: Any) -> None:
    assert across(value, "a value") == value
    assert unpack(pack_now(value, "a value")) == value


def test_each_reader_has_memory_of_its_own() -> None:
    mine = bytearray(b"abc")
    packed = pack(Buffer(mine), "a value")
    first, second = unpack(packed), unpack(packed)
    first.data[0] = ord("x")
    assert (bytes(second.data), bytes(mine)) == (b"abc", b"abc")


def test_read_only_readers_share_memory_that_none_can_write_into() -> None:
    packed = pack(Buffer(bytearray(b"abc")), "a value")
    first, second = unpack(packed, readonly=True), unpack(packed, readonly=True)
    assert first.data.obj is second.data.obj
    with pytest.raises(TypeError, match="read-only"):
        first.data[0] = ord("x")


def test_packed_now_does_not_see_what_the_sender_writes_later() -> None:
    mine = bytearray(b"abc")
    now, later = pack_now(Buffer(mine), "a value"), pack(Buffer(mine), "a value")
    mine[0] = ord("x")
    assert (bytes(unpack(now).data), bytes(unpack(later).data)) == (b"abc", b"xbc")


def test_what_cannot_travel_is_named() -> None:
    with pytest.raises(NotPicklableError, match=r"the lock cannot travel to another rank.*cloudpickle") as caught:
        pack(threading.Lock(), "the lock")
    assert isinstance(caught.value, TypeError)


def test_lambdas_travel_with_cloudpickle() -> None:
    base = 10
    assert across(lambda x: x + base, "a function")(1) == 11


def test_class_of_this_process_stays_the_class_it_is() -> None:
    assert type(across(Buffer(b"x"), "a value")) is Buffer


NOT_IMPORTABLE = """
import sys
sys.modules["cloudpickle"] = None
from fanfold.worker.border import across, pickled
class Mine: pass
print(type(across(Mine(), "it")) is Mine)
print(len(pickled({"name": "__main__"}, "a text", leaves_process=True)) == 2)
try:
    pickled(Mine(), "an instance", leaves_process=True)
except TypeError as error:
    print(error)
"""


def test_main_does_not_leave_its_process_without_cloudpickle() -> None:
    done = subprocess.run([sys.executable, "-c", NOT_IMPORTABLE], check=True, capture_output=True, text=True)
    same, text, error = done.stdout.splitlines()
    assert (same, text) == ("True", "True")
    assert "an instance cannot travel" in error
    assert "Mine is defined in __main__" in error
    assert "pip install 'fanfold-worker[cloudpickle]'" in error


def test_main_leaves_its_process_with_cloudpickle() -> None:
    code = (
        "from fanfold.worker.border import pickled\n"
        "class Mine: pass\n"
        "print(b'Mine' in pickled(Mine(), 'an instance', leaves_process=True)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"
    assert pickled(3, "a number", leaves_process=True)[1] == []


def _noted(error: Exception) -> Exception:
    error.add_note("while loading")
    return error


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), OSError(2, "no", "/x"), FussyError(shard=3), _noted(ValueError("bad"))],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_whole(error: Exception) -> None:
    arrived = pickle.loads(pickle.dumps(for_travel(error)))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
    assert as_it_arrives(error) is error


def test_error_that_cannot_travel_is_put_in_words() -> None:
    arrived = pickle.loads(pickle.dumps(for_travel(LockedError())))
    assert isinstance(arrived, RemoteError)
    assert arrived.class_name.endswith(".LockedError")
    assert arrived.text == "has a lock"
    assert str(arrived).endswith("LockedError: has a lock")
    assert isinstance(as_it_arrives(LockedError()), RemoteError)


def test_error_that_cannot_even_print() -> None:
    assert remote_error(UnprintableError()).text == "<RuntimeError while printing it>"
