"""Workers that make, read and change batches, and say what memory they were given."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fanfold.dataproto import DataProto, DataProtoFuture
from fanfold.dispatch import Dispatch, register
from fanfold.worker import Worker

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
