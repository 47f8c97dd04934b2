from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from fanfold.dataproto import ColumnError, ColumnTypeError, DataProto, DataProtoItem, MergeError, collate_fn


def test_rows_become_a_batch_again(picture: Callable[[DataProto], Any]) -> None:
    jagged = torch.nested.as_nested_tensor([torch.arange(n) for n in (3, 1, 2)], layout=torch.jagged)
    inside = TensorDict({"q": torch.zeros(3, 2), "s": NonTensorStack("a", "b", "c")}, batch_size=[3])
    batch = DataProto.from_dict(
        {"x": torch.arange(3), "j": jagged, "t": inside, "u": torch.ones(3, dtype=torch.uint16)},
        {"s": ["x", [1], None]},
        {"k": 1},
    )
    assert picture(collate_fn(list(batch))) == picture(batch)
    assert picture(collate_fn([batch[2], batch[0]])) == picture(batch[[2, 0]])
    objects = batch.select([], ["s"])
    assert collate_fn(list(DataProto.from_dict(None, {"s": list(objects["s"])}))).batch is None


def item(**columns: Any) -> DataProtoItem:
    return DataProtoItem(TensorDict(columns, batch_size=[]))


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([], MergeError, "collate_fn got no rows"),
        (
            [item(x=torch.zeros(1)), item(y=torch.zeros(1))],
            MergeError,
            r"row 1 has the tensor columns \['y'\]; expected \['x'\]",
        ),
        (
            [item(x=torch.zeros(1)), item(x=torch.zeros(1).long())],
            ColumnError,
            "'x' has rows of .*; expected one dtype",
        ),
        (
            [item(x=torch.zeros(1, 2)), item(x=torch.zeros(2, 3))],
            ColumnError,
            "expected equal ones, or one ragged dimension",
        ),
        ([item(x=torch.zeros(1)), item(x=torch.zeros(1, 2))], ColumnError, "'x' has rows of the shapes"),
        ([item(x=torch.zeros(1)), item(x=TensorDict({}, batch_size=[]))], ColumnError, "'x' has rows of the types"),
        ([3], ColumnTypeError, "entry 0 is a int; expected a DataProtoItem"),
    ],
)
def test_rows_that_do_not_fit(rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        collate_fn(rows)
