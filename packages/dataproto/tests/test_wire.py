import pickle
import pickletools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from fanfold.dataproto import DataProto, WireError
from fanfold.dataproto.leaves import listed


def out_of_band(value: Any) -> tuple[bytes, list[bytes]]:
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return stream, [bytes(buffer.raw()) for buffer in buffers]


def test_an_empty_tensordict_keeps_its_length() -> None:
    received = pickle.loads(pickle.dumps(DataProto(TensorDict({}, batch_size=[3]), meta_info={"k": 1})))
    assert (len(received), list(received.batch.keys()), received.meta_info) == (3, [], {"k": 1})


def test_a_slice_carries_its_rows_only() -> None:
    batch = DataProto.from_dict(
        {"h": torch.zeros(100_000, 16), "m": torch.ones(100_000, dtype=torch.bool)},
        {"n": np.arange(100_000), "s": np.array(["x" * 20] * 100_000, dtype=object)},
    )
    for protocol in range(2, 6):
        assert len(pickle.dumps(batch[10:14], protocol)) < 4_000
    jagged = torch.nested.nested_tensor_from_jagged(torch.zeros(100_000), torch.arange(0, 100_001, 10))
    assert len(pickle.dumps(DataProto.from_dict({"j": jagged})[10:14])) < 4_000


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.bfloat16])
def test_uncommon_dtypes(dtype: torch.dtype) -> None:
    column = torch.tensor([1, 2, 100]).to(dtype)
    received = pickle.loads(pickle.dumps(DataProto.from_dict({"u": column})))
    assert received["u"].dtype == dtype
    assert received["u"].view(torch.uint8).tolist() == column.view(torch.uint8).tolist()


def test_the_ragged_dimension_arrives() -> None:
    rows = [torch.arange(6.0).view(2, 3), torch.arange(10.0).view(2, 5), torch.arange(2.0).view(2, 1)]
    batch = DataProto.from_dict({"pos": torch.nested.as_nested_tensor(rows, layout=torch.jagged)})
    received = pickle.loads(pickle.dumps(batch))["pos"]
    assert received.layout == torch.jagged
    assert not isinstance(received.shape[2], int)
    assert [row.tolist() for row in received.unbind()] == [row.tolist() for row in rows]


def test_columns_that_share_their_lengths_still_do() -> None:
    offsets = torch.tensor([0, 1, 3])
    one = torch.nested.nested_tensor_from_jagged(torch.arange(3), offsets)
    two = torch.nested.nested_tensor_from_jagged(torch.ones(3), offsets)
    received = pickle.loads(pickle.dumps(DataProto.from_dict({"a": one, "b": two})))
    assert (received["a"] * received["b"]).values().tolist() == [0.0, 1.0, 2.0]


def test_tensors_leave_the_stream_without_a_copy() -> None:
    batch = DataProto.from_dict({"x": torch.zeros(1000), "h": torch.zeros(1000, dtype=torch.bfloat16)})
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(batch, 5, buffer_callback=buffers.append)
    assert len(stream) < 1_000
    assert [buffer.raw().nbytes for buffer in buffers] == [4000, 2000]
    received = pickle.loads(stream, buffers=buffers)
    assert received["x"].data_ptr() == batch["x"].data_ptr()


def test_large_arrays_and_tensors_in_cells_leave_the_stream_too() -> None:
    image, feature = np.ones(50_000), torch.ones(50_000)
    batch = DataProto.from_dict(None, {"image": [image], "feature": [{"f": feature}]}, {"table": np.zeros(50_000)})
    stream, buffers = out_of_band(batch)
    assert len(stream) < 2_000
    assert sorted(map(len, buffers)) == [200_000, 400_000, 400_000]
    received = pickle.loads(stream, buffers=buffers)
    received["image"][0][:] = 2
    received["feature"][0]["f"][:] = 2
    received.meta_info["table"][:] = 2
    again = pickle.loads(stream, buffers=buffers)
    assert again["image"][0].sum() == again["feature"][0]["f"].sum() == 50_000


def test_nothing_is_decoded_before_it_is_touched() -> None:
    stream, buffers = out_of_band(DataProto.from_dict({"x": torch.zeros(2)}, {"s": ["a", "b"]}, {"k": 1}))
    received = pickle.loads(stream, buffers=buffers)
    assert len(received) == 2
    assert received._objects is received._meta is received._table is None
    assert received["x"].tolist() == [0.0, 0.0]
    assert received._objects is None
    assert received.meta_info == {"k": 1}
    assert received._pending is None


def test_what_may_not_be_written_is_copied_when_batch_is_asked_for() -> None:
    stream, buffers = out_of_band(
        DataProto.from_dict({"x": torch.zeros(2), "y": torch.zeros(2)}, {"n": np.zeros(4000)[:2]})
    )
    received = pickle.loads(stream, buffers=buffers)
    mapped = received["x"].data_ptr()
    assert received[0:1]["x"].data_ptr() == received.select(["x"])["x"].data_ptr() == mapped
    assert received.readonly().batch["x"].data_ptr() == mapped
    item = received[0]
    item.batch["x"].fill_(1)
    received[0:1].batch["x"].fill_(1)
    received.to_tensordict()["x"].fill_(1)
    received.clone()["x"].fill_(1)
    received.batch["x"].fill_(1)
    received["n"].fill(1)
    assert pickle.loads(stream, buffers=buffers)["x"].tolist() == [0.0, 0.0]


def test_only_columns_that_are_left_are_copied() -> None:
    stream, buffers = out_of_band(DataProto.from_dict({"x": torch.zeros(2), "y": torch.zeros(2)}))
    received = pickle.loads(stream, buffers=buffers)
    mapped = received["y"].data_ptr()
    assert list(received.select(["x"]).batch.keys()) == ["x"]
    assert received["y"].data_ptr() == mapped


def test_operations_on_mapped_columns(picture: Callable[[DataProto], Any]) -> None:
    offsets = torch.tensor([0, 1, 3])
    batch = DataProto.from_dict(
        {"x": torch.arange(2), "j": torch.nested.nested_tensor_from_jagged(torch.arange(3), offsets)}, {"s": ["a", "b"]}
    )
    stream, buffers = out_of_band(batch)
    changes: list[Callable[[DataProto], DataProto]] = [
        lambda x: x.rename("x", "z").rename("z", "x"),
        lambda x: x.union(batch.clone()),
        lambda x: x.to("cpu").select(["x", "j"]),
        lambda x: pickle.loads(pickle.dumps(x)),
        lambda x: DataProto.concat(x.chunk(2)),
    ]
    for change in changes:
        made: Any = change(pickle.loads(stream, buffers=buffers))
        assert picture(made) == picture(batch)
        made.batch["x"].fill_(5)
        made.batch["j"].values().fill_(5)
    popped = (received := pickle.loads(stream, buffers=buffers)).pop(["x"])
    popped.batch["x"].fill_(5)
    received.batch["j"].values().fill_(5)
    assert picture(pickle.loads(stream, buffers=buffers)) == picture(batch)


def test_gradients_do_not_travel() -> None:
    leaf = torch.ones(2, requires_grad=True)
    received = pickle.loads(pickle.dumps(DataProto.from_dict({"w": leaf, "y": leaf * 2})))
    assert (received["y"].tolist(), received["y"].requires_grad, received["w"].requires_grad) == (
        [2.0, 2.0],
        False,
        False,
    )


def test_lazy_conjugates_and_strides_arrive_as_values() -> None:
    column = torch.tensor([[1 + 2j, 3 - 1j]]).T
    received = pickle.loads(pickle.dumps(DataProto.from_dict({"c": column.conj(), "i": column.conj().imag})))
    assert received["c"].tolist() == [[1 - 2j], [3 + 1j]]
    assert received["i"].tolist() == [[-2.0], [1.0]]


def test_values_of_a_nested_tensordict() -> None:
    inside = TensorDict(
        {
            "q": torch.zeros(2, 3, 1),
            "whole": NonTensorData([1, 2], batch_size=[2, 3]),
            "each": NonTensorStack(
                *[NonTensorStack(*[NonTensorData([row, at]) for at in range(3)]) for row in range(2)]
            ),
        },
        batch_size=[2, 3],
        names=["row", "turn"],
    )
    received = pickle.loads(pickle.dumps(DataProto.from_dict({"t": inside})))["t"]
    assert received.batch_size == torch.Size([2, 3])
    assert received.names == ["row", "turn"]
    assert listed(dict(received.items())["each"])[1] == [[1, 0], [1, 1], [1, 2]]
    assert dict(received.items())["whole"].data == [1, 2]


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("no way")


def test_what_cannot_be_pickled_is_named() -> None:
    batch = DataProto.from_dict({"x": torch.zeros(3)}, {"s": ["a", {"deep": [Unpicklable()]}, "c"]})
    with pytest.raises(WireError, match=r"column 's', row 1: a dict cannot be pickled \(TypeError: no way\)"):
        pickle.dumps(batch)
    inside = TensorDict({"each": NonTensorStack(NonTensorData(1), NonTensorData(Unpicklable()))}, batch_size=[2])
    with pytest.raises(WireError, match=r"column 't\.each', row 1: a Unpicklable cannot be pickled"):
        pickle.dumps(DataProto.from_dict({"t": inside}))
    with pytest.raises(WireError, match=r"meta_info\['lock'\]: a Unpicklable cannot be pickled"):
        pickle.dumps(DataProto(meta_info={"lock": Unpicklable()}))


def test_rules_padding_and_attributes_travel() -> None:
    batch = DataProto.from_dict({"x": torch.zeros(1)}, meta_info={"lr": 0.1}, auto_padding=True)
    batch.merge_rules = {"lr": "mean"}
    batch.label = "seven"  # type: ignore[attr-defined]
    received = pickle.loads(pickle.dumps(batch))
    assert received.label == "seven"
    assert (received.merge_rules, received.is_padding_enabled()) == ({"lr": "mean"}, True)


SCRIPT = """
import pickle, sys, torch
from fanfold.dataproto import DataProto

class Config:
    def __init__(self, value):
        self.value = value

batch = DataProto.from_dict({"x": torch.zeros(1)}, {"s": [Config(3)]}, {"f": lambda x: x + 1})
sys.stdout.buffer.write(pickle.dumps(batch))
"""


@pytest.mark.timeout(660)
def test_classes_of_a_main_script_travel_where_there_is_cloudpickle() -> None:
    pytest.importorskip("cloudpickle")
    sent = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True, timeout=600).stdout
    received = pickle.loads(sent)
    assert received["s"][0].value == 3
    assert received.meta_info["f"](1) == 2


def test_no_code_of_torch_loads_a_payload() -> None:
    stream = pickle.dumps(DataProto.from_dict({"x": torch.zeros(2)}, {"t": [torch.ones(1), torch.ones(2)]}))
    names = {
        argument for opcode, argument, _ in pickletools.genops(stream) if opcode.name in {"SHORT_BINUNICODE", "GLOBAL"}
    }
    assert "fanfold.dataproto.wire" in names
    assert not {name for name in names if isinstance(name, str) and name.startswith("torch.")}
    assert b"torch.storage" not in stream


def test_pickling_a_batch_that_contains_itself_ends() -> None:
    batch = DataProto(meta_info={})
    batch.meta_info["self"] = batch
    with pytest.raises(WireError, match="it contains itself"):
        pickle.dumps(batch)
