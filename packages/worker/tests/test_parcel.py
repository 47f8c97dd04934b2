from __future__ import annotations

import contextlib
import os
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
from fanfold.worker import GroupUsageError, memory
from fanfold.worker.channel import MOST_FILES, Decoder, encode
from fanfold.worker.memory import ALIGNMENT, MemoryFile
from fanfold.worker.parcel import LARGE, Parcel, opened, parcel
from hypothesis import given
from hypothesis import strategies as st


class Buffer:
    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Buffer, (pickle.PickleBuffer(self.data),)


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_memory_holds_its_chunks(chunks: list[bytes]) -> None:
    file = MemoryFile.holding(chunks)
    for writable in (True, False):
        assert [bytes(view) for view in file.views(writable=writable)] == chunks


def test_readers_write_for_themselves() -> None:
    file = MemoryFile.holding([b"abc", b"d" * 5000])
    (first, large), (second, _) = file.views(writable=True), file.views(writable=True)
    first[0] = ord("x")
    large[4999] = ord("x")
    assert bytes(second) == b"abc"
    assert bytes(file.views(writable=False)[1]) == b"d" * 5000


def test_read_only_views() -> None:
    (view,) = MemoryFile.holding([b"abc"]).views(writable=False)
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1


def test_chunks_are_aligned() -> None:
    file = MemoryFile.holding([b"a", b"b"])
    assert os.pread(file.descriptor, 1, ALIGNMENT) == b"b"


def test_views_outlive_the_file_and_nothing_is_left_open() -> None:
    before = _open_files()
    views = MemoryFile.holding([b"abc" * 1000]).views(writable=True)
    assert bytes(views[0]) == b"abc" * 1000
    del views
    assert _open_files() == before


def test_without_descriptors_left_the_content_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    file = MemoryFile.holding([b"abc"])

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(24, "too many open files")

    monkeypatch.setattr("fanfold.worker.memory.mmap.mmap", refuse)
    (view,) = file.views(writable=True)
    view[0] = ord("x")
    assert bytes(view) == b"xbc"


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, 3 * LARGE])
def test_parcel_of_any_size(size: int) -> None:
    mine = bytearray(size)
    sent = parcel({"data": Buffer(mine)}, "a value")
    mine[:1] = b"x" * min(size, 1)
    first, second = opened(sent), opened(sent)
    assert bytes(first["data"].data) == bytes(size)
    if size:
        first["data"].data[0] = 7
        assert second["data"].data[0] == 0
        with pytest.raises(TypeError, match="read-only"):
            opened(sent, readonly=True)["data"].data[0] = 7
    assert (sent.file is not None) == (size >= LARGE - 200)


@pytest.mark.parametrize("value", [None, 3, "short", b"short", 1.5])
def test_small_values_that_nobody_can_write_into_go_as_they_are(value: Any) -> None:
    assert parcel(value, "a value") is value


def test_long_text_is_shared() -> None:
    sent = parcel("x" * LARGE, "a text")
    assert isinstance(sent, Parcel)
    assert sent.file is not None
    assert opened(sent) == "x" * LARGE


def test_without_memory_files_the_message_carries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(28, "no space left")

    monkeypatch.setattr(memory, "_anonymous_file", refuse)
    sent = parcel(Buffer(bytearray(LARGE)), "a value")
    assert sent.file is None
    assert bytes(opened(sent).data) == bytes(LARGE)


@pytest.fixture(name="wire")
def _wire() -> Any:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def _send_all(connection: socket.socket, message: Any) -> None:
    frame = encode(message)
    while not frame.send(connection):
        pass


def test_messages_arrive_in_order_with_their_memory(wire: Any) -> None:
    here, there = wire
    messages = [
        ("small", 1),
        ("large", parcel(Buffer(bytearray(LARGE)), "x")),
        ("last", [parcel(b"y" * LARGE, "y")] * 2),
    ]
    for message in messages:
        _send_all(here, message)
    decoder = Decoder()
    arrived: list[Any] = []
    while len(arrived) < len(messages):
        assert decoder.receive(there)
        arrived += decoder.messages()
    assert arrived[0] == ("small", 1)
    assert bytes(opened(arrived[1][1]).data) == bytes(LARGE)
    assert [opened(value) for value in arrived[2][1]] == [b"y" * LARGE] * 2


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=8), st.data())
def test_messages_survive_any_cuts(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(bytes(encode(body).rest) for body in bodies)
    decoder = Decoder()
    arrived: list[Any] = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        decoder.received += stream[:cut]
        stream = stream[cut:]
        arrived += decoder.messages()
    assert arrived == bodies


def test_closed_connection_is_told(wire: Any) -> None:
    here, there = wire
    _send_all(here, "last")
    here.close()
    decoder = Decoder()
    assert decoder.receive(there)
    assert list(decoder.messages()) == ["last"]
    assert not decoder.receive(there)


def test_full_socket_takes_the_rest_later(wire: Any) -> None:
    here, there = wire
    here.setblocking(False)
    message = ("long", b"z" * 4_000_000)
    frame, decoder, arrived = encode(message), Decoder(), list[Any]()
    done = False
    while not arrived:
        with contextlib.suppress(BlockingIOError):
            done = done or frame.send(here)
        decoder.receive(there)
        arrived += decoder.messages()
    assert done
    assert arrived == [message]


def test_too_many_large_arguments() -> None:
    sent = [MemoryFile.holding([b"x"]) for _ in range(MOST_FILES + 1)]
    with pytest.raises(GroupUsageError, match="put them into one list"):
        encode(sent)
