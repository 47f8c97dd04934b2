"""JSON that would become much more memory than it is itself."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from tensordict import NonTensorStack, TensorDict

from fanfold.dataproto import DataProto, FileFormatError, budget, jsonable

SIZE = 200_000
OVERHEAD = 256 * 1024
DENSE: dict[str, Callable[[int], Any]] = {
    "empty lists": lambda at: [],
    "lists in lists": lambda at: [[[]]],
    "empty dicts": lambda at: {},
    "dicts of one": lambda at: {"a": 1},
    "dicts of many": lambda at: {f"{at:x}{key}": key for key in range(20)},
    "short texts": lambda at: f"{at:04x}",
    "small numbers": lambda at: at % 9,
    "numbers": lambda at: 300 + at % 600,
    "floats": lambda at: at % 10 + 0.5,
    "texts of JSON": lambda at: json.dumps({"a": [{}, {}, at]}),
    "escapes": lambda at: "\\\"'\x00é" * (at % 5),
}
decoded = jsonable.Decoder(lambda spec: spec, allow_pickle=False).decode


def peak(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", DENSE)
def test_what_is_read_takes_at_most_ten_times_its_bytes(name: str) -> None:
    values: list[Any] = []
    size = 0
    while size < SIZE:
        values.append(DENSE[name](len(values)))
        size += len(json.dumps(values[-1])) + 1
    written = jsonable.dumps(values)
    assert decoded(written) == values
    assert peak(lambda: decoded(written)) <= 9 * len(written) + OVERHEAD
    bare = json.dumps(values, separators=(",", ":")).encode()
    try:
        assert peak(lambda: decoded(bare)) <= 9 * len(bare) + OVERHEAD
    except FileFormatError as refused:
        assert len(bare) < len(written)
        assert "no batch is so dense" in str(refused)  # noqa: PT017 (either outcome is right)


@pytest.mark.parametrize("start", [b'"', b"[" * 10, b"{", b"\\", b""])
@pytest.mark.parametrize("again", [b'\\"', b"\\", b'"', b'"\\', b"["])
@pytest.mark.timeout(60)
def test_damaged_text_is_looked_at_once(start: bytes, again: bytes) -> None:
    with pytest.raises(FileFormatError):
        decoded(start + again * 200_000)


@given(text=st.binary(max_size=200))
def test_any_text(text: bytes) -> None:
    assert budget.weight(text) >= 0
    budget.check(budget.filled(text))


def test_a_column_of_many_small_objects_comes_back(tmp_path: Path) -> None:
    batch = DataProto.from_dict(None, {"lists": [[]] * 9000, "dicts": [{"a": {}}] * 9000})
    batch.save(tmp_path / "b")
    assert DataProto.load(tmp_path / "b") == batch
    stack = DataProto.from_dict({"t": TensorDict({"s": NonTensorStack(*[1] * 2000)}, batch_size=[2000])})
    stack.save(tmp_path / "b")
    assert DataProto.load(tmp_path / "b") == stack


def test_a_file_of_dense_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b"
    DataProto.from_dict(None, {"s": ["x" * 90_000]}).save(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"x" * 90_000, b'",' + b"[]," * 29_999 + b'"'))
    with pytest.raises(FileFormatError, match="no batch is so dense"):
        DataProto.load(path)


def test_an_entry_belongs_to_one_value(tmp_path: Path) -> None:
    path = tmp_path / "b"
    DataProto.from_dict({"x": torch.zeros(2), "y": torch.zeros(2)}).save(path)
    content = path.read_bytes()
    assert content.count(b'"at":"1:y"') == 1
    path.write_bytes(content.replace(b'"at":"1:y"', b'"at":"0:x"'))
    with pytest.raises(FileFormatError, match="two values are said to be in the entry '0:x'"):
        DataProto.load(path)


def test_numbers_longer_than_python_reads() -> None:
    longest = [10**5000, -(10**5000), 2**2048, 2**2047, -(2**64)]
    assert decoded(jsonable.dumps(jsonable.Encoder(lambda kept: kept, allow_pickle=False).encode(longest))) == longest
