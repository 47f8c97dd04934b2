import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from fanfold.dataproto import DataProto, FileFormatError, MissingKeyError, WireError


def test_values_come_back_with_the_types_that_went_in(tmp_path: Path, picture: Callable[[DataProto], Any]) -> None:
    cells = [
        (1, "a", None),
        {1: 2, "$": 3, (1, 2): [b"x", 1 + 2j]},
        {"nan": float("nan"), "inf": -float("inf"), "big": 2**200},
        {1, 2},
        frozenset(["a"]),
        np.float32(1.5),
        np.datetime64("2024-01-01"),
        np.array([1, "a"], dtype=object),
        torch.ones(2, dtype=torch.float8_e5m2),
        "\ud800 lone",
        True,
        1,
    ]
    meta: dict[Any, Any] = {"k": cells, 5: "int key"}
    batch = DataProto.from_dict({"x": torch.arange(12)}, {"c": cells, "m": [[cells] * 2] * 12}, meta)
    batch.save(tmp_path / "b")
    loaded = DataProto.load(tmp_path / "b")
    assert picture(loaded) == picture(batch)
    assert [type(cell) for cell in loaded["c"]] == [type(cell) for cell in cells]
    assert list(loaded.meta_info.values())[1] == "int key"


def test_save_to_disk_and_load_from_disk(tmp_path: Path) -> None:
    batch = DataProto.from_dict({"x": torch.arange(3)}, {"s": ["a", "b", "c"]}, {"step": 1}, auto_padding=True)
    batch.merge_rules = {"step": "max"}
    batch.save_to_disk(str(tmp_path / "b"))
    loaded = DataProto.load_from_disk(str(tmp_path / "b"))
    assert loaded == batch
    assert (loaded.merge_rules, loaded.is_padding_enabled()) == ({"step": "max"}, True)


def test_nested_values(tmp_path: Path, picture: Callable[[DataProto], Any]) -> None:
    inside = TensorDict(
        {
            "q": torch.zeros(2, 3),
            "whole": NonTensorData({"a": torch.ones(1)}, batch_size=[2]),
            "each": NonTensorStack(NonTensorData([1]), NonTensorData("b")),
        },
        batch_size=[2],
    )
    batch = DataProto.from_dict({"t": inside})
    batch.save(tmp_path / "b")
    assert picture(DataProto.load(tmp_path / "b")) == picture(batch)


def test_some_columns(tmp_path: Path) -> None:
    DataProto.from_dict({"x": torch.arange(3), "y": torch.zeros(3)}, {"s": ["a", "b", "c"], "n": np.arange(3)}).save(
        tmp_path / "b"
    )
    some = DataProto.load(tmp_path / "b", columns=["y", "s"])
    assert some.batch is not None
    assert (list(some.batch.keys()), list(some.non_tensor_batch), len(some)) == (["y"], ["s"], 3)
    assert len(DataProto.load(tmp_path / "b", columns=[])) == 3
    with pytest.raises(MissingKeyError, match=r"no column 'z'; it has \['n', 's', 'x', 'y'\]"):
        DataProto.load(tmp_path / "b", columns=["z"])


def test_loaded_tensors_are_mapped_and_may_be_written(tmp_path: Path) -> None:
    path = tmp_path / "b"
    DataProto.from_dict({"x": torch.zeros(1 << 20)}).save(path)
    before = path.read_bytes()
    loaded = DataProto.load(path)
    assert "b" in {Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines()}
    loaded["x"].add_(1)
    assert path.read_bytes() == before
    DataProto.from_dict({"x": torch.ones(2)}).save(path)
    assert loaded["x"].sum() == 1 << 20


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b"
    DataProto.from_dict({"x": torch.zeros(2)}).save(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        DataProto.from_dict({"x": torch.ones(2)}).save(path)
    assert DataProto.load(path)["x"].tolist() == [0.0, 0.0]
    assert [found.name for found in tmp_path.iterdir()] == ["b"]


def test_what_is_no_file_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DataProto.load(tmp_path / "missing")
    (tmp_path / "empty").touch()
    with pytest.raises(FileFormatError, match="is empty"):
        DataProto.load(tmp_path / "empty")
    (tmp_path / "text").write_text("hello, I am no batch")
    with pytest.raises(FileFormatError, match="is no file of a batch, or was cut off"):
        DataProto.load(tmp_path / "text")
    DataProto.from_dict({"x": torch.zeros(2)}).save(tmp_path / "b")
    newer = (tmp_path / "b").read_bytes().replace(b'"version":"1"', b'"version":"2"')
    (tmp_path / "newer").write_bytes(newer)
    with pytest.raises(FileFormatError, match="has the version 2; this package reads 1"):
        DataProto.load(tmp_path / "newer")


class Thing:
    def __init__(self, value: int) -> None:
        self.value = value


def test_other_objects_need_permission_on_both_sides(tmp_path: Path) -> None:
    batch = DataProto.from_dict({"x": torch.zeros(2)}, {"s": ["a", [Thing(3)]]}, {"big": {"t": np.ones(9000)}})
    with pytest.raises(
        WireError, match=r"column 's', row 1: a Thing is nothing that JSON can hold; .*allow_pickle=True"
    ):
        batch.save(tmp_path / "b")
    with pytest.raises(WireError, match=r"meta_info\['t'\]: a Thing"):
        DataProto(meta_info={"t": Thing(1)}).save(tmp_path / "b")
    batch.save(tmp_path / "b", allow_pickle=True)
    with pytest.raises(FileFormatError, match="pass allow_pickle=True if you trust"):
        DataProto.load(tmp_path / "b")
    assert DataProto.load(tmp_path / "b", allow_pickle=True)["s"][1][0].value == 3
    with pytest.raises(WireError, match="a generator cannot be pickled"):
        DataProto(meta_info={"f": (number for number in range(3))}).save(tmp_path / "c", allow_pickle=True)


def test_a_value_that_contains_itself(tmp_path: Path) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(WireError, match="column 's', row 0: the value contains itself"):
        DataProto.from_dict(None, {"s": [cycle]}).save(tmp_path / "b")


def test_two_dimensional_object_columns(tmp_path: Path, picture: Callable[[DataProto], Any]) -> None:
    batch = DataProto(non_tensor_batch={"o": np.array([[1, "a"], [None, 2.5]], dtype=object)})
    batch.save(tmp_path / "b")
    assert picture(DataProto.load(tmp_path / "b")) == picture(batch)
    batch["o"][1, 0] = Thing(1)
    with pytest.raises(WireError, match="column 'o', row 1"):
        batch.save(tmp_path / "b")
