import pytest
import torch

from fanfold.dataproto import ColumnTypeError, DataProto, SplitError, pad_dataproto_to_divisor, unpad_dataproto


def test_padding_beyond_the_batch_is_cyclic_and_comes_off_again() -> None:
    batch = DataProto.from_dict({"a": torch.tensor([4, 9])}, meta_info={"step": 3, "metrics": {"loss": 1.0}})
    padded, added = pad_dataproto_to_divisor(batch, 7)
    assert (added, padded["a"].tolist()) == (5, [4, 9, 4, 9, 4, 9, 4])
    assert padded.meta_info == {"step": 3, "metrics": {"loss": 1.0}}
    assert unpad_dataproto(padded, added)["a"].tolist() == [4, 9]
    assert len(batch) == 2


def test_what_divides_comes_back_itself() -> None:
    batch = DataProto.from_dict({"a": torch.zeros(4)})
    assert pad_dataproto_to_divisor(batch, 2) == (batch, 0)
    assert pad_dataproto_to_divisor(batch, 2)[0] is batch
    assert unpad_dataproto(batch, 0) is batch


def test_no_rows_stay_no_rows() -> None:
    assert len(pad_dataproto_to_divisor(DataProto(), 3)[0]) == 0


def test_misuse() -> None:
    batch = DataProto.from_dict({"a": torch.zeros(4)})
    with pytest.raises(SplitError, match="5 padding rows cannot be taken off a batch of 4 rows"):
        unpad_dataproto(batch, 5)
    with pytest.raises(SplitError, match="size_divisor is 0; expected at least 1"):
        pad_dataproto_to_divisor(batch, 0)
    with pytest.raises(SplitError, match="pad_size is -1"):
        unpad_dataproto(batch, -1)
    for misused in (pad_dataproto_to_divisor, unpad_dataproto):
        with pytest.raises(ColumnTypeError, match="got a list; expected a DataProto"):
            misused([1], 2)  # type: ignore[type-var]
