"""Workers that make, read and change batches, and say what memory they were given."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fanfold.dataproto import DataProto, DataProtoFuture, object_column
from fanfold.dispatch import Dispatch, register
from fanfold.worker import Worker
from tensordict import NonTensorData, NonTensorStack, TensorDict

LIMIT = 60.0  # seconds that a worker waits for a test


def wait_for(path: str) -> None:
    end = time.monotonic() + LIMIT
    while not Path(path).exists():
        assert time.monotonic() < end, f"nobody made {path}"
        time.sleep(0.01)


def memory_of(tensor: torch.Tensor) -> str:
    """Return whose memory a tensor is in: "store" for what is mapped from Ray's object store, else "own"."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        bounds, _, _, _, _, *path = line.split(maxsplit=5)
        first, last = (int(bound, 16) for bound in bounds.split("-"))
        if first <= address < last:
            return "store" if path and "plasma" in path[0] else "own"
    raise AssertionError("memory that is nowhere")


class Maker(Worker):
    """Makes batches of its rows, and leaves them on the cluster."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def same(self, batch: DataProto) -> DataProto:
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def grow(self, batch: DataProto, width: int) -> DataProto:
        rows = batch["i"]
        return DataProto.from_dict({"i": rows, "wide": rows[:, None].expand(-1, width).contiguous()}, {"s": batch["s"]})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, uneven="pad", apart=["i", "s", "wide"])
    def in_pieces(self, batch: DataProto) -> DataProto:
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, balance="weight")
    def balanced(self, batch: DataProto, lose: bool = False) -> DataProto:
        return batch[:-1] if lose and self.rank else batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, apart=["i"])
    def no_pieces(self, batch: DataProto) -> dict[str, int]:
        return {"rows": len(batch)}

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def after(self, batch: DataProto, path: str) -> DataProto:
        wait_for(path)
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def fails(self, batch: DataProto, how: str) -> DataProto:
        if how == "exit":
            os._exit(3)
        raise KeyError("no such prompt")

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def count(self, batch: DataProto) -> dict[str, int]:
        return {"rows": len(batch)}

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def odd_rows(self, batch: DataProto) -> DataProto:
        odd: DataProto = batch[batch["i"] % 2 == 1]
        return odd

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, uneven="pad")
    def padded(self, batch: DataProto, lose: bool = False) -> DataProto:
        return batch[:-1] if lose else batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def unpicklable(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict(None, {"s": [threading.Lock()] * len(batch)})


class Reader(Worker):
    """Reads batches."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def read(self, batch: DataProto) -> DataProto:
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def total(self, batch: DataProto) -> list[float]:
        return [float(batch["i"].sum()), len(batch)]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def twice(self, batch: DataProto) -> DataProto:
        batch.batch["i"].mul_(2)  # type: ignore[index]
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=["i"])
    def reads_one(self, batch: DataProto) -> list[list[str]]:
        return [sorted(batch.batch.keys()), sorted(batch.non_tensor_batch)]  # type: ignore[union-attr]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, materialize_futures=False)
    def given(self, batch: Any) -> list[Any]:
        return [isinstance(batch, DataProtoFuture), len(batch), batch.get()["i"].tolist()]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def whole(self, batch: DataProto) -> int:
        return len(batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, inputs="readonly")
    def memory_readonly(self, batch: DataProto) -> list[str]:
        return [memory_of(batch["wide"]), memory_of(batch.batch["wide"])]  # type: ignore[index]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, inputs="readonly")
    def breaks_its_word(self, batch: DataProto, lie: bool) -> int:
        if lie:
            batch.batch["i"].add_(1)  # type: ignore[index]
        return len(batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def memory_writable(self, batch: DataProto) -> list[str]:
        mapped = memory_of(batch["wide"])
        own = memory_of(batch.batch["wide"])  # type: ignore[index]
        batch.batch["wide"].zero_()  # type: ignore[index]
        return [mapped, own]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def slow(self, batch: DataProto, path: str) -> DataProto:
        wait_for(path)
        return batch


def numbered(rows: int, width: int = 0) -> DataProto:
    """Make a batch of numbered rows; with a width, with a column of that many numbers a row."""
    numbers = torch.arange(rows)
    tensors = {"i": numbers} | ({"wide": numbers[:, None].expand(-1, width).contiguous()} if width else {})
    return DataProto.from_dict(tensors, {"s": [f"row {number}" for number in range(rows)]}, {"step": 3})


def rich(rows: int) -> DataProto:
    """Make a batch with columns of every kind."""
    numbers = torch.arange(rows)
    ragged = torch.nested.as_nested_tensor(
        [torch.arange(1 + row % 3, dtype=torch.float32) for row in range(rows)], layout=torch.jagged
    )
    tensors: dict[str, Any] = {
        "i": numbers,
        "bf16": torch.randn(rows, 5, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16),
        "mask": numbers[:, None] % torch.arange(1, 5) == 0,
        "none": torch.empty(rows, 0),
        "ragged": ragged,
        "wide": numbers[:, None].expand(-1, 6000).contiguous(),
    }
    cells = np.empty(rows, dtype=object)
    cells[:] = [None if row % 4 == 0 else {"row": row, "list": [row] * (row % 3)} for row in range(rows)]
    objects = {"s": [f"row {row}" for row in range(rows)], "cells": cells, "floats": np.linspace(0, 1, rows)}
    return DataProto.from_dict(tensors, objects, {"step": 3, "names": ["a", "b"]})


DTYPES = [
    *(f"uint{bits}" for bits in (8, 16, 32, 64)),
    *(f"int{bits}" for bits in (8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64"),
    *(f"float8_{kind}" for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")),
    *("complex32", "complex64", "complex128"),
]


def of_every_dtype(rows: int) -> DataProto:
    """Make a batch with a dense column of every dtype, each of another shape, and one that is a view with strides."""
    raw = (torch.arange(rows * 32) % 120).to(torch.uint8).reshape(rows, 32)
    tensors: dict[str, Any] = {"bool": raw % 2 == 0}
    for name in DTYPES:
        dtype: torch.dtype = getattr(torch, name)
        tensors[name] = raw[:, : 16 * (1 + dtype.itemsize % 2)].contiguous().view(dtype)
    tensors["strided"] = torch.arange(rows * 6.0).reshape(3, 2 * rows).T[::2]
    tensors["flat"], tensors["deep"] = torch.arange(rows), torch.zeros(rows, 0, 3)
    return DataProto.from_dict(tensors)


def jagged(rows: int) -> DataProto:
    """Make a batch with jagged columns: common lengths, no values, gaps between rows, dimensions inside and before."""
    lengths = torch.arange(rows) % 4
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    total = int(offsets[-1])
    make = torch.nested.nested_tensor_from_jagged
    tensors = {
        "ids": make(torch.arange(total), offsets),
        "features": make(torch.arange(total * 3.0).reshape(total, 3).to(torch.bfloat16), offsets),
        "places": make(torch.arange(2 * total).reshape(2, total), offsets, jagged_dim=2),
        "gaps": make(torch.arange(total), offsets, (lengths - 1).clamp(min=0)),
        "empty": make(torch.zeros(0), torch.zeros(rows + 1, dtype=torch.int64)),
    }
    return DataProto.from_dict(tensors)


def nested(rows: int) -> DataProto:
    """Make a batch with a TensorDict as a column, which holds others and values that are no tensors."""
    each = [NonTensorData(f"view {row}") for row in range(rows)]
    inside = TensorDict(
        {
            "pixels": torch.arange(rows * 4).reshape(rows, 2, 2),
            "same": NonTensorData({"camera": 1}, batch_size=[rows]),
            **({"each": NonTensorStack(*each)} if each else {}),
            "deeper": TensorDict({"mask": torch.arange(rows) % 2 == 0}, batch_size=[rows]),
        },
        batch_size=[rows],
    )
    return DataProto.from_dict({"views": inside, "i": torch.arange(rows)})


def of_objects(rows: int) -> DataProto:
    """Make a batch of columns that are no tensors: objects of many kinds, numbers, texts and times; `batch` is None."""
    kinds = [None, True, 2**70, 0.5, "text", b"bytes", torch.ones(2), np.arange(3.0), [1, [2]], {"a": (1,)}, {3: "b"}]
    arrays = {
        "cells": object_column([kinds[row % len(kinds)] for row in range(rows)]),
        "floats": np.linspace(0, 1, rows, dtype=np.float32),
        "texts": np.array([f"t{row}" for row in range(rows)], dtype="<U3"),
        "days": np.arange(rows).astype("<M8[D]"),
    }
    return DataProto(None, arrays, {"step": 3, "table": np.arange(4), "names": ["a"]})


def kinds(rows: int) -> dict[str, DataProto]:
    """Make a batch of each kind."""
    made = {"dtypes": of_every_dtype, "jagged": jagged, "nested": nested, "objects": of_objects}
    return {name: make(rows) for name, make in made.items()}
