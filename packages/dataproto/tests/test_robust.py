"""Bytes from elsewhere: a value or a DataProtoError, never a crash, a hang, or memory beyond ten times the input."""

import contextlib
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from safetensors.torch import load_file, save_file
from tensordict import TensorDict

from fanfold.dataproto import (
    ColumnTypeError,
    DataProto,
    DataProtoError,
    FileFormatError,
    WireError,
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_tensordict,
)
from fanfold.dataproto.wire import TAG, rebuild

OVERHEAD = 1 << 20  # what reading anything at all takes: modules, the interpreter's own buffers


def sample() -> DataProto:
    rows = [torch.arange(length) for length in (3, 0, 2)]
    return DataProto.from_dict(
        {
            "ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
            "x": torch.arange(6.0).view(3, 2),
            "c": torch.ones(3, dtype=torch.complex128),
            "t": TensorDict({"q": torch.zeros(3, 2)}, batch_size=[3]),
        },
        {"s": ["a", ("b", 1), {"k": torch.ones(2)}], "n": np.arange(3)},
        {"step": 1},
    )


def saved(tmp_path: Path) -> bytes:
    sample().save(tmp_path / "sample")
    return (tmp_path / "sample").read_bytes()


def load_within_memory(path: Path) -> DataProto | None:
    tracemalloc.start()
    try:
        return touched(DataProto.load(path))
    except DataProtoError:
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10 * path.stat().st_size + OVERHEAD


def touched(batch: DataProto) -> DataProto:
    assert repr(batch)
    batch.clone()
    return batch


@given(content=st.binary(max_size=400))
def test_a_file_of_any_bytes(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        DataProto.load(path)


@given(data=st.data())
def test_a_file_with_bytes_changed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    content = bytearray(saved(folder))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "changed"
    path.write_bytes(content)
    load_within_memory(path)


@given(data=st.data())
def test_a_file_cut_off(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    content = saved(folder)
    path = folder / "cut"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(FileFormatError, match=r"cut off|empty"):
        DataProto.load(path)


def test_a_foreign_safetensors_file(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(FileFormatError, match="was not written by"):
        DataProto.load(tmp_path / "model.safetensors")


def test_our_files_are_safetensors_files(tmp_path: Path) -> None:
    sample().save(tmp_path / "sample.safetensors")
    found = load_file(tmp_path / "sample.safetensors")
    assert found["2:x"].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


anything = st.recursive(
    st.none()
    | st.integers(-3, 2**40)
    | st.binary(max_size=16)
    | st.text(max_size=4)
    | st.sampled_from(["d", "j", "t", "v", "s", "x", "float32", "int64", "qint8", "bits8"]),
    lambda inside: st.lists(inside, max_size=4).map(tuple) | st.dictionaries(st.text(max_size=2), inside, max_size=2),
    max_leaves=12,
)


@given(
    head=anything,
    described=anything,
    block=st.binary(max_size=20),
    buffers=st.lists(st.binary(max_size=32), max_size=3),
)
def test_any_payload(head: Any, described: Any, block: bytes, buffers: list[bytes]) -> None:
    with contextlib.suppress(DataProtoError):
        touched(rebuild(DataProto, TAG, head, described, block, buffers))


specs = st.tuples(
    st.sampled_from(["float32", "int64", "complex128", "qint8", "nothing"]),
    st.lists(st.integers(-1, 4) | st.just(2**40), max_size=3).map(tuple),
    st.integers(-2, 3),
)
dense_columns = specs.map(lambda spec: ("d", *spec))
jagged_columns = st.tuples(st.just("j"), st.integers(0, 3), st.integers(0, 2), specs)
few_buffers = st.lists(st.binary(max_size=64), max_size=3)


@given(
    rows=st.integers(-1, 4),
    offsets=st.lists(specs, max_size=2),
    columns=st.lists(st.tuples(st.sampled_from("ab"), dense_columns | jagged_columns), max_size=3),
    buffers=few_buffers,
)
def test_any_columns(rows: int, offsets: list[Any], columns: list[Any], buffers: list[bytes]) -> None:
    block = pickle.dumps(({}, {}, []), 5)
    with contextlib.suppress(DataProtoError):
        touched(
            rebuild(DataProto, TAG, (rows, len(buffers), False, None, None), (None, offsets, columns), block, buffers)
        )


@given(found=anything)
def test_any_plain_tuples(found: Any) -> None:
    for read in (deserialize_single_tensor, deserialize_tensordict):
        with contextlib.suppress(DataProtoError):
            read(found)


@pytest.mark.parametrize("device", [b"\x80", "x\udc80", 2**70, -1, "cpu:-1", "", object()], ids=str)
def test_what_is_no_device(device: Any) -> None:
    with pytest.raises(WireError, match="which this process does not have"):
        deserialize_tensordict(((), device, ()))
    with pytest.raises(ColumnTypeError, match="expected a device such as"):
        sample().to(device)


@given(data=st.data())
def test_plain_tuples_changed(data: st.DataObject) -> None:
    batch = sample().batch
    assert batch is not None
    size, device, columns = serialize_tensordict(batch)
    columns[data.draw(st.sampled_from(sorted(columns)))] = data.draw(anything)
    with contextlib.suppress(DataProtoError):
        deserialize_tensordict((size, device, columns))


def test_offsets_beyond_the_values_are_refused() -> None:
    buffers = [np.array([0, 2, 900]).tobytes(), np.zeros(4).tobytes()]
    column = ("j", 1, 0, ("float64", (4,), 1))
    described = (None, [("int64", (3,), 0)], [("ids", column)])
    with pytest.raises(WireError, match="offsets from 0 to 900 over 4 values"):
        rebuild(DataProto, TAG, (2, 2, False, None, None), described, pickle.dumps(({}, {}, [])), buffers)["ids"]


def test_a_payload_cannot_become_large_by_naming_one_buffer_often() -> None:
    columns = [(f"c{at}", ("d", "float32", (4,), 0)) for at in range(2)]
    with pytest.raises(WireError, match="two tensors of a received batch are said to be in buffer 0"):
        touched(rebuild(DataProto, TAG, (4, 1, False, None, None), (None, [], columns), b"", [bytes(16)]))


@pytest.mark.parametrize("name", ["qint8", "quint8", "qint32", "quint4x2", "quint2x4"])
def test_quantized_tensors_cannot_be_made_of_bytes(name: str) -> None:
    # One without a quantizer ends the process as soon as it is touched.
    with pytest.raises(WireError, match=f"the dtype '{name}' is not known"):
        deserialize_single_tensor((name, (4,), bytes(16)))


def test_another_version_says_so() -> None:
    with pytest.raises(WireError, match=r"fanfold\.dataproto/999.*expected 'fanfold\.dataproto/1'"):
        rebuild(DataProto, "fanfold.dataproto/999", None, None, b"", [])


class Trap:
    """Unpickling it would show."""

    sprung = False

    def __reduce__(self) -> Any:
        return _spring, ()


def _spring() -> str:
    Trap.sprung = True
    return "sprung"


def test_a_file_executes_nothing_unless_it_is_told_to(tmp_path: Path) -> None:
    batch = DataProto.from_dict({"x": torch.zeros(2)}, {"s": ["a", Trap()]})
    with pytest.raises(WireError, match=r"column 's', row 1: a Trap .* allow_pickle=True"):
        batch.save(tmp_path / "trap")
    assert not (tmp_path / "trap").exists()
    batch.save(tmp_path / "trap", allow_pickle=True)
    with pytest.raises(FileFormatError, match="executes code from the file"):
        DataProto.load(tmp_path / "trap")
    assert not Trap.sprung
    assert DataProto.load(tmp_path / "trap", columns=["x"]).batch is not None
    assert DataProto.load(tmp_path / "trap", allow_pickle=True)["s"].tolist() == ["a", "sprung"]
