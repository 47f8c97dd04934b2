from typing import Any

import numpy as np
import pytest
import torch

from fanfold.dataproto import ColumnSchema, ColumnTypeError, DataProto, Schema, SchemaError


def sample() -> DataProto:
    jagged = torch.nested.as_nested_tensor(
        [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, -5])], layout=torch.jagged
    )
    return DataProto.from_dict(
        {
            "j": jagged,
            "x": torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, float("inf")]]),
            "h": torch.ones(3).to(torch.float8_e5m2),
        },
        {"s": ["a", "b", 3], "n": np.array([1, 2, 300])},
        {"step": 1},
    )


def test_a_batch_fits_its_own_schema() -> None:
    schema = sample().schema()
    assert schema.columns["j"] == ColumnSchema("jagged tensor", "int64", (None,))
    assert schema.columns["x"] == ColumnSchema("tensor", "float32", (2,))
    assert schema.columns["s"] == ColumnSchema("objects", "object", ())
    assert schema.columns["n"] == ColumnSchema("array", "int64", ())
    assert sample()[:2].schema().columns["s"].cell == "str"
    assert schema.meta_keys == {"step"}
    sample().validate(schema)
    sample()[1:].validate(schema)


@pytest.mark.parametrize(
    ("column", "expected", "message"),
    [
        ("j", ColumnSchema(kind="tensor"), r"column 'j': kind is 'jagged tensor'; expected 'tensor'"),
        ("x", ColumnSchema(dtype="float64"), r"column 'x': dtype is 'float32'; expected 'float64'"),
        ("x", ColumnSchema(shape=(None, 2)), r"column 'x': a row has the shape \(2,\); expected \(None, 2\)"),
        ("x", ColumnSchema(finite=True), r"column 'x', row 2: inf is not finite"),
        ("x", ColumnSchema(low=1.0), r"column 'x', row 0: 0.0 is below 1.0"),
        ("x", ColumnSchema(low=1.0, high=2.5, finite=True), r"column 'x', row 0: 0.0 is below 1.0"),
        ("j", ColumnSchema(low=0), r"column 'j', row 2: -5 is below 0"),
        ("n", ColumnSchema(high=255), r"column 'n', row 2: 300 is above 255"),
        ("h", ColumnSchema(high=0.5), r"column 'h', row 0: 1.0 is above 0.5"),
        ("s", ColumnSchema(cell="str"), r"column 's', row 2: 3 is a int; expected str"),
        ("s", ColumnSchema(low=0), r"column 's' is no column of numbers"),
        ("z", ColumnSchema(), r"column 'z' is missing; the batch has \['h', 'j', 'n', 's', 'x'\]"),
    ],
)
def test_the_first_offence_is_named(column: str, expected: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        sample().validate(Schema({column: expected}))


def test_what_a_schema_leaves_open() -> None:
    sample().validate(Schema({"x": ColumnSchema(shape=(None,), high=float("inf")), "h": ColumnSchema(finite=True)}))
    with pytest.raises(SchemaError, match="column 'h' is not in the schema"):
        sample().validate(Schema({"x": ColumnSchema()}, closed=True))
    with pytest.raises(SchemaError, match=r"meta_info has no 'lr'; it has \['step'\]"):
        sample().validate(Schema(meta_keys=frozenset(["lr"])))
    with pytest.raises(ColumnTypeError, match="validate got a dict"):
        sample().validate({})  # type: ignore[arg-type]
