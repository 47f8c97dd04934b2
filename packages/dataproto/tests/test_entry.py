"""What a dispatcher is told; without a dispatcher."""

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from fanfold.dataproto import DataProto, DataProtoFuture
from fanfold.dataproto.entry import freeze, register_types


def told() -> dict[type, dict[str, Any]]:
    found: dict[type, dict[str, Any]] = {}

    def register_batch_type(cls: type, **operations: Any) -> None:
        found[cls] = operations

    register_types(register_batch_type)
    return found


def sample() -> DataProto:
    jagged = torch.nested.as_nested_tensor([torch.arange(3), torch.arange(1)], layout=torch.jagged)
    inside = TensorDict({"q": torch.zeros(2)}, batch_size=[2])
    return DataProto.from_dict(
        {"x": torch.zeros(2), "j": jagged, "t": inside}, {"s": ["a", [1]], "n": np.arange(2)}, {"k": 1}
    )


def test_the_entry_point_is_installed() -> None:
    (entry,) = [found for found in entry_points(group="fanfold.batch_types") if found.name == "fanfold.dataproto"]
    assert entry.load() is register_types


def test_a_batch_by_its_operations() -> None:
    operations, batch = told()[DataProto], sample()
    assert operations["columns"](batch) == ("x", "j", "t", "s", "n")
    assert operations["take"](batch, (1, 0))["s"].tolist() == [[1], "a"]
    picked = operations["select"](batch, ["s", "x"])
    assert (list(picked.batch.keys()), list(picked.non_tensor_batch), picked.meta_info) == (["x"], ["s"], {"k": 1})
    assert operations["column"](batch, "n").tolist() == [0, 1]
    assert operations["nbytes"](batch) == batch.nbytes


def test_parts_that_are_not_here_yet_become_a_future() -> None:
    future = told()[DataProto]["lazy"](None, [("header", "payload")])
    assert type(future) is DataProtoFuture
    assert DataProtoFuture in told()


class Shelf:
    """A store of one batch that counts what it is asked for."""

    def __init__(self, batch: DataProto) -> None:
        self.batch, self.asked = batch, 0

    def put(self, value: object) -> Any:
        raise AssertionError("nothing is stored here")

    def header(self, handle: Any, timeout: float | None) -> Any:
        self.asked += 1
        return {"rows": len(self.batch)}

    def fetch(self, handles: Sequence[Any], timeout: float | None) -> list[Any]:
        self.asked += 1
        return [self.batch for _ in handles]

    def free(self, handles: Sequence[Any]) -> None: ...


def test_a_part_of_a_future_is_cut_without_asking() -> None:
    shelf, operations = Shelf(DataProto.from_dict({"x": torch.arange(5)})), told()[DataProtoFuture]
    future = operations["lazy"](shelf, [("header", "payload")])
    parts = [operations["part"](future, at, 3) for at in range(3)]
    assert shelf.asked == 0
    assert [part.get()["x"].tolist() for part in parts] == [[0, 1], [2, 3], [4]]


def test_writes_are_noticed() -> None:
    batch = sample()
    written = freeze(batch)
    assert written() is None
    batch["x"].add_(1)
    assert written() == "columns ['x'] were written"
    batch["x"].sub_(1)
    batch["j"].values()[0] = 9
    batch["t"]["q"][1] = 9
    batch["n"][0] = 9
    batch["s"][0] = "b"
    assert written() == "columns ['j', 't', 's', 'n'] were written"
    batch.pop(["x"])
    assert written() == "columns ['x'] were added or removed"
