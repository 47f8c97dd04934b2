"""No operation on numeric columns runs Python code for each row: as many calls for 2,000 rows as for 20."""

import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from fanfold.dataproto import DataProto, fold_batch_dim, pad_dataproto_to_divisor, unfold_batch_dim
from fanfold.dataproto.entry import freeze

FEW, MANY = 20, 2_000
SOME = 100  # garbage collection and caches may call something; rows would call 1,980 times


def numeric(rows: int) -> DataProto:
    offsets = torch.arange(0, 3 * rows + 1, 3)
    return DataProto.from_dict(
        {
            "x": torch.rand(rows, 4),
            "u": torch.ones(rows, dtype=torch.uint16),
            "j": torch.nested.nested_tensor_from_jagged(torch.arange(3 * rows), offsets),
            "t": TensorDict({"q": torch.rand(rows, 2)}, batch_size=[rows]),
        },
        {"n": np.arange(rows), "s": np.array(["ab"] * rows)},
        {"step": 1},
    )


OPERATIONS: dict[str, Callable[[DataProto, int], Any]] = {
    "chunk": lambda x, rows: x.chunk(4),
    "split": lambda x, rows: x.split(rows // 5),
    "concat": lambda x, rows: DataProto.concat([x, x]),
    "index": lambda x, rows: x[torch.arange(rows).flip(0)],
    "array": lambda x, rows: x[np.arange(rows)],
    "mask": lambda x, rows: x[torch.arange(rows) % 2 == 0],
    "range": lambda x, rows: x[range(0, rows, 3)],
    "slice": lambda x, rows: x[1:-1],
    "stride": lambda x, rows: x[::2],
    "reorder": lambda x, rows: x.reorder(torch.arange(rows).flip(0)),
    "repeat": lambda x, rows: x.repeat(3),
    "repeat apart": lambda x, rows: x.repeat(3, interleave=False),
    "sample level": lambda x, rows: x.sample_level_repeat(torch.arange(rows) % 3),
    "padding": lambda x, rows: x.padding(rows),
    "pad": lambda x, rows: pad_dataproto_to_divisor(x, rows - 1),
    "fold": lambda x, rows: unfold_batch_dim(fold_batch_dim(x, rows // 2)),
    "unfold chunks": lambda x, rows: x.unfold_column_chunks(2, ["x"]),
    "clone": lambda x, rows: x.clone(),
    "union": lambda x, rows: x.union(x.clone()),
    "equals": lambda x, rows: x.equals(x.clone()),
    "to": lambda x, rows: x.to("cpu"),
    "pickle": lambda x, rows: pickle.loads(pickle.dumps(x)).batch,
    "schema": lambda x, rows: x.validate(x.schema()),
    "repr": lambda x, rows: repr(x),
    "mini batch": lambda x, rows: next(x.mini_batches(rows // 2, shuffle=True, seed=1)),
    "freeze": lambda x, rows: freeze(x)(),
}


def calls(action: Callable[[], Any]) -> int:
    count = 0

    def counted(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_python_for_each_row(name: str) -> None:
    operation = OPERATIONS[name]
    operation(numeric(FEW), FEW)  # what is imported or cached at first use
    batches = numeric(FEW), numeric(MANY)
    few, many = (calls(lambda batch=batch: operation(batch, len(batch))) for batch in batches)  # type: ignore[misc]
    assert many < few + SOME


def test_no_python_for_each_row_of_a_file(tmp_path: Path) -> None:
    def there_and_back(rows: int) -> int:
        batch, path = numeric(rows), tmp_path / str(rows)
        return calls(lambda: batch.save(path)) + calls(lambda: DataProto.load(path))

    there_and_back(FEW)
    assert there_and_back(MANY) < there_and_back(FEW) + SOME


def test_a_view_prints_and_pickles_its_own_rows_only() -> None:
    stream = io.BytesIO()
    pickle.dump(numeric(MANY)[:2], stream)
    assert len(stream.getvalue()) < 3_000
