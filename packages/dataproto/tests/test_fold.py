import numpy as np
import pytest
import torch
from tensordict import TensorDict

from fanfold.dataproto import ColumnTypeError, DataProto, SplitError, fold_batch_dim, unfold_batch_dim


def sample() -> DataProto:
    jagged = torch.nested.as_nested_tensor([torch.arange(n) for n in (1, 2, 0, 3)], layout=torch.jagged)
    return DataProto.from_dict(
        {"x": torch.arange(8).view(4, 2), "j": jagged, "t": TensorDict({"q": torch.zeros(4, 3)}, batch_size=[4])},
        {"s": list("abcd"), "n": np.arange(8).reshape(4, 2)},
        {"k": [1]},
    )


def test_groups() -> None:
    batch = sample()
    folded = fold_batch_dim(batch, 2)
    assert len(folded) == 2
    assert folded["x"].tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert folded["s"].tolist() == [["a", "b"], ["c", "d"]]
    assert folded["n"].shape == (2, 2, 2)
    assert folded["t"]["q"].shape == (2, 2, 3)
    assert [row.tolist() for row in folded["j"]["folded_values"].unbind()] == [[0, 0, 1], [0, 1, 2]]
    assert folded["j"]["folded_lengths"].tolist() == [[1, 2], [0, 3]]
    assert unfold_batch_dim(folded) == batch
    assert len(batch) == 4
    assert batch["s"].shape == (4,)


def test_a_group_can_be_dealt_with_in_between() -> None:
    unfolded = unfold_batch_dim(fold_batch_dim(sample(), 2)[1:])
    assert unfolded == sample()[2:]


def test_objects_alone_and_no_rows() -> None:
    batch = DataProto.from_dict(None, {"s": list("abcd")})
    assert unfold_batch_dim(fold_batch_dim(batch, 4)) == batch
    empty = sample()[:0]
    assert unfold_batch_dim(fold_batch_dim(empty, 3)) == empty


def test_what_cannot_be_folded() -> None:
    with pytest.raises(SplitError, match="4 rows cannot be folded into 3 groups"):
        fold_batch_dim(sample(), 3)
    with pytest.raises(SplitError, match="new_batch_size is 0"):
        fold_batch_dim(sample(), 0)
    with pytest.raises(SplitError, match=r"column 'y' has the dimensions \[4\]; expected at least 2"):
        unfold_batch_dim(DataProto.from_dict({"x": torch.zeros(4, 2), "y": torch.zeros(4)}))
    with pytest.raises(SplitError, match=r"column 'y' starts with \[4, 3\], 'x' with \[4, 2\]"):
        unfold_batch_dim(DataProto.from_dict({"x": torch.zeros(4, 2), "y": torch.zeros(4, 3)}))
    with pytest.raises(ColumnTypeError, match="got a list"):
        fold_batch_dim([1], 1)  # type: ignore[type-var]
