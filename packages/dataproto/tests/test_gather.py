"""Real process groups: two processes, gloo."""

import os
import socket
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict

from fanfold.dataproto import ColumnTypeError, DataProto, MergeError, all_gather_data_proto


def piece(first: int, rows: int) -> DataProto:
    numbers = torch.arange(first, first + rows)
    jagged = torch.nested.nested_tensor_from_jagged(torch.arange(2 * rows) + first, torch.arange(0, 2 * rows + 1, 2))
    return DataProto.from_dict(
        {
            "i": numbers,
            "u": numbers.to(torch.uint16),
            "f8": torch.ones(rows, 3).to(torch.float8_e4m3fn),
            "none": torch.zeros(rows, 0),
            "b": numbers % 2 == 0,
            "j": jagged,
            "t": TensorDict({"q": torch.ones(rows, 2)}, batch_size=[rows]),
        },
        {"s": [f"row {number}" for number in numbers.tolist()], "n": np.arange(first, first + rows)},
        {"rank": first},
    )


def work(rank: int, port: int, world: int) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=300), world, rank)
    bounds = [(0, 3), (3, 1)]
    mine = piece(*bounds[rank])
    all_gather_data_proto(mine, dist.group.WORLD)
    whole = DataProto.concat([piece(*pair) for pair in bounds], merge={"rank": "first"})
    assert mine.select(None, None, []) == whole.select(None, None, [])
    assert mine.meta_info == {"rank": bounds[rank][0]}
    objects = DataProto.from_dict(None, {"s": [rank]})
    all_gather_data_proto(objects, dist.group.WORLD)
    assert list(objects["s"]) == [0, 1]
    other = DataProto.from_dict({("x" if rank else "y"): torch.zeros(1)})
    with pytest.raises(MergeError, match=r"rank 1 has the columns .*'x'.* rank 0 has .*'y'"):
        all_gather_data_proto(other, dist.group.WORLD)
    dist.barrier()
    # The process ends here, and not by taking the group down: torch 2.6 may wait there for ever.
    os._exit(0)


@pytest.fixture(name="port")
def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    return number


@pytest.mark.timeout(600)
def test_all_gather_with_different_numbers_of_rows(port: int) -> None:
    spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    spawn(work, (port, 2), nprocs=2)


def test_misuse() -> None:
    with pytest.raises(ColumnTypeError, match="got a dict; expected a DataProto"):
        all_gather_data_proto({}, None)  # type: ignore[arg-type]
