import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from fanfold.dataproto import (
    ColumnTypeError,
    WireError,
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (0,), (1, 1)])
def test_dense_tensors_of_every_dtype(
    all_dtypes: list[torch.dtype], random_tensor: object, shape: tuple[int, ...]
) -> None:
    for dtype in all_dtypes:
        tensor = random_tensor(dtype, shape, 5)  # type: ignore[operator]
        name, sizes, raw = serialize_single_tensor(tensor)
        assert (name, sizes, str(raw.dtype)) == (str(dtype).removeprefix("torch."), shape, "uint8")
        again = deserialize_single_tensor((name, sizes, raw))
        assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
        assert serialize_single_tensor(again)[2].tobytes() == raw.tobytes()
        if again.numel():
            again.view(torch.uint8) if again.dim() else None
            assert again.data_ptr() != tensor.data_ptr()


def test_a_whole_tensordict() -> None:
    rows = [torch.arange(6.0).view(2, 3), torch.arange(2.0).view(2, 1)]
    batch = TensorDict(
        {
            "x": torch.zeros(2, 0),
            "j": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
            "t": TensorDict({"q": torch.ones(2, 2)}, batch_size=[2]),
            "v": NonTensorData("whole", batch_size=[2]),
            "s": NonTensorStack("a", "b"),
        },
        batch_size=[2],
        device="cpu",
    )
    size, device, columns = serialize_tensordict(batch)
    assert (size, device, set(columns)) == ((2,), "cpu", {"x", "j", "t", "v", "s"})
    again = deserialize_tensordict((size, device, columns))
    assert again.device == torch.device("cpu")
    assert [row.tolist() for row in again["j"].unbind()] == [row.tolist() for row in rows]
    assert again["t", "q"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert dict(again.items())["v"].data == "whole"
    assert dict(again.items())["s"].tolist() == ["a", "b"]


def test_damage_is_a_typed_error() -> None:
    with pytest.raises(WireError, match="needs 12 bytes; its buffer has 3"):
        deserialize_single_tensor(("float32", (3,), b"abc"))
    with pytest.raises(WireError, match="the dtype 'float31' is not known"):
        deserialize_single_tensor(("float31", (), b""))
    with pytest.raises(WireError, match="a serialized tensor is"):
        deserialize_single_tensor(3)
    with pytest.raises(WireError, match="a serialized TensorDict is"):
        deserialize_tensordict(3)
    with pytest.raises(WireError, match="which this process does not have"):
        deserialize_tensordict(((2,), "no such device", {}))
    jagged = torch.nested.as_nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged)
    for wrong, message in ((jagged, "of the layout torch.jagged"), ([1], "got a list")):
        with pytest.raises(ColumnTypeError, match=f"{message}; expected a dense tensor"):
            serialize_single_tensor(wrong)  # type: ignore[arg-type]
    with pytest.raises(WireError, match="a tensor on the meta device has no values"):
        serialize_single_tensor(torch.zeros(2, device="meta"))
