import pickle

import numpy as np
import torch

from fanfold.dataproto import DataProto


def sample() -> DataProto:
    jagged = torch.nested.as_nested_tensor([torch.arange(n) + 100 * n for n in (3, 5, 2, 4)], layout=torch.jagged)
    return DataProto.from_dict(
        {"ids": jagged, "x": torch.arange(8.0).view(4, 2), "half": torch.ones(4, dtype=torch.bfloat16)},
        {"s": ["a", [1, 2], None, {"k": torch.ones(2)}]},
        {"step": 1, "lr": float("nan")},
    )


def test_concat_of_chunks_is_the_batch() -> None:
    batch = sample()
    assert DataProto.concat(batch.chunk(2)).equals(batch)


def test_pickle_out_of_band_and_in_band() -> None:
    batch = sample()
    for protocol in range(2, 6):
        assert pickle.loads(pickle.dumps(batch, protocol)).equals(batch)
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(batch, 5, buffer_callback=buffers.append)
    assert pickle.loads(stream, buffers=buffers).equals(batch)


def test_read_only_memory_is_copied_once_somebody_may_write() -> None:
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(sample(), 5, buffer_callback=buffers.append)
    frozen = [bytes(buffer.raw()) for buffer in buffers]
    received = pickle.loads(stream, buffers=frozen)
    assert received["x"].data_ptr() != received.batch["x"].data_ptr()
    received.batch["x"].add_(1)
    again = pickle.loads(stream, buffers=frozen)
    assert again.equals(sample())
    assert again.readonly().batch["x"].data_ptr() == again["x"].data_ptr()


def test_rows_by_every_form() -> None:
    batch = sample()
    mask = np.array([True, False, True, False])
    for rows in (
        [0, 2],
        mask,
        torch.tensor(mask),
        range(0, 4, 2),
        slice(0, 4, 2),
        np.array([0, 2]),
        torch.tensor([-4, 2]),
    ):
        picked = batch[rows]
        assert picked["x"].tolist() == [[0.0, 1.0], [4.0, 5.0]]
        assert [row.tolist() for row in picked["ids"].unbind()] == [[300, 301, 302], [200, 201]]
        assert list(picked.non_tensor_batch["s"]) == ["a", None]
