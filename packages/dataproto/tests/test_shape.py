import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from fanfold.dataproto import (
    ColumnTypeError,
    DataProto,
    DataProtoConfig,
    MergeError,
    MissingKeyError,
    SplitError,
    collate_fn,
    fold_batch_dim,
    unfold_batch_dim,
)


def numbered(rows: int, **options: Any) -> DataProto:
    return DataProto.from_dict({"i": torch.arange(rows)}, {"s": [str(row) for row in range(rows)]}, **options)


def test_a_chunk_that_does_not_divide_names_both_numbers_and_the_ways_out() -> None:
    batch = numbered(2)
    with pytest.raises(
        SplitError, match=r"2 rows cannot be divided into 4 equal chunks; use chunk\(4, uneven='split'\).*pad"
    ):
        batch.chunk(4)
    assert batch["i"].tolist() == [0, 1]
    for wrong, error in ((0, SplitError), (-1, SplitError), (1.5, ColumnTypeError), (True, ColumnTypeError)):
        with pytest.raises(error, match="chunks is"):
            batch.chunk(wrong)  # type: ignore[arg-type]
    with pytest.raises(ColumnTypeError, match="uneven is 'some'"):
        batch.chunk(2, uneven="some")  # type: ignore[arg-type]


def test_uneven_chunks_are_as_many_as_asked_for_and_aligned() -> None:
    pieces = numbered(124, auto_padding=True).chunk(15)
    assert [len(piece) for piece in pieces] == [9] * 4 + [8] * 11
    assert [number for piece in pieces for number in piece["i"].tolist()] == list(range(124))
    for piece in pieces:
        assert [str(number) for number in piece["i"].tolist()] == list(piece["s"])
    assert [len(piece) for piece in numbered(2).chunk(4, uneven="split")] == [1, 1, 0, 0]


def test_padded_chunks() -> None:
    batch = numbered(2)
    assert [piece["i"].tolist() for piece in batch.chunk(4, uneven="pad")] == [[0], [1], [0], [1]]
    assert [piece["s"].tolist() for piece in batch.chunk(4, uneven="pad")] == [["0"], ["1"], ["0"], ["1"]]
    assert len(batch) == 2
    assert [len(piece) for piece in numbered(0).chunk(3, uneven="pad")] == [0, 0, 0]


def test_padding_may_be_enabled_for_one_batch_or_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not numbered(3).is_padding_enabled()
    assert numbered(3, meta_info={DataProtoConfig.auto_padding_key: True}).is_padding_enabled()
    assert numbered(3, auto_padding=True)[1:].is_padding_enabled()
    try:
        DataProtoConfig.auto_padding = True
        assert len(numbered(3).chunk(2)) == 2
        DataProtoConfig.auto_padding = False
        monkeypatch.setenv("FANFOLD_AUTO_PADDING", "1")
        assert not numbered(3).is_padding_enabled()
        with pytest.raises(ColumnTypeError, match="auto_padding is 1"):
            DataProtoConfig.auto_padding = 1  # type: ignore[assignment]
        DataProtoConfig.auto_padding = None
        assert numbered(3).is_padding_enabled()
    finally:
        DataProtoConfig.auto_padding = None


def test_split() -> None:
    pieces = numbered(146).split(4)
    assert [len(piece) for piece in pieces] == [4] * 36 + [2]
    assert torch.equal(torch.cat([piece["i"] for piece in pieces]), torch.arange(146))
    assert numbered(0).split(4) == []
    for wrong in (0, -1):
        with pytest.raises(SplitError, match=f"split_size is {wrong}; expected at least 1"):
            numbered(2).split(wrong)


def test_chunks_share_no_metadata() -> None:
    batch = numbered(4, meta_info={"cfg": {"a": [1]}})
    one, two = batch.chunk(2)
    one.meta_info["cfg"]["a"].append(2)
    batch.meta_info["cfg"]["b"] = 3
    assert two.meta_info == {"cfg": {"a": [1]}}


def test_repeat_keeps_both_kinds_in_step() -> None:
    batch = DataProto.from_dict({"p": torch.tensor([[1], [2]])}, {"img": ["i1", "i2"]}, {"k": 1}).to("cpu")
    together, apart = batch.repeat(3), batch.repeat(3, interleave=False)
    assert (together["p"].flatten().tolist(), list(together["img"])) == ([1, 1, 1, 2, 2, 2], ["i1"] * 3 + ["i2"] * 3)
    assert (apart["p"].flatten().tolist(), list(apart["img"])) == ([1, 2] * 3, ["i1", "i2"] * 3)
    assert together.meta_info == {"k": 1}
    assert together.batch is not None
    assert together.batch.device == torch.device("cpu")
    with pytest.raises(SplitError, match="repeat_times is -1"):
        batch.repeat(-1)


def test_sample_level_repeat() -> None:
    for counts in ([2, 0, 1], (2, 0, 1), np.array([2, 0, 1]), torch.tensor([2, 0, 1])):
        assert numbered(3).sample_level_repeat(counts)["i"].tolist() == [0, 0, 2]
    assert len(numbered(0).sample_level_repeat([])) == 0
    with pytest.raises(SplitError, match=r"repeat_times is torch.int64 \[2\]; expected 3 integers"):
        numbered(3).sample_level_repeat([1, 2])
    with pytest.raises(SplitError, match="negative entry -1"):
        numbered(2).sample_level_repeat([1, -1])
    for wrong in ([1.0, 1.0, 1.0], ["a", "b", "c"], [[1], [1, 2], 3]):
        with pytest.raises(SplitError, match="expected 3 integers, one for each row"):
            numbered(3).sample_level_repeat(wrong)
    with pytest.raises(ColumnTypeError, match="repeat_times is a int"):
        numbered(2).sample_level_repeat(2)


def test_reorder_wants_a_permutation() -> None:
    batch = numbered(3)
    batch.reorder([2, 0, 1])
    assert (batch["i"].tolist(), list(batch["s"])) == ([2, 0, 1], ["2", "0", "1"])
    for wrong in ([0, 1], [0, 0, 1], [0, 1, 2, 0]):
        with pytest.raises(SplitError, match="expected every row number exactly once"):
            batch.reorder(wrong)
    objects = DataProto.from_dict(None, {"s": ["a", "b"]})
    objects.reorder(torch.tensor([1, 0]))
    assert list(objects["s"]) == ["b", "a"]


def test_unfold_column_chunks() -> None:
    batch = DataProto.from_dict(
        {"x": torch.arange(8).view(2, 4), "y": torch.arange(2)}, {"n": np.arange(8).reshape(2, 4)}
    )
    made = batch.unfold_column_chunks(2, ["x", "n"])
    assert made["x"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert made["n"].tolist() == made["x"].tolist()
    assert made["y"].tolist() == [0, 0, 1, 1]
    with pytest.raises(
        SplitError, match=r"column 'x' has the shape \[2, 4\]; expected a dense second dimension divisible by 3"
    ):
        batch.unfold_column_chunks(3, ["x"])
    with pytest.raises(SplitError, match="column 'y'"):
        batch.unfold_column_chunks(2, ["y"])
    with pytest.raises(MissingKeyError, match="no column 'z'"):
        batch.unfold_column_chunks(2, ["z"])


def test_padding_in_place() -> None:
    for candidate, row in (("", 1), ("last", 1), ("first", 0)):
        batch = numbered(2)
        batch.padding(2, candidate)
        assert batch["i"].tolist() == [0, 1, row, row]
        assert list(batch["s"]) == ["0", "1", str(row), str(row)]
    with pytest.raises(SplitError, match="no row that could be repeated"):
        numbered(0).padding(1)
    with pytest.raises(SplitError, match="padding_size is -1"):
        numbered(2).padding(-1)
    with pytest.raises(ColumnTypeError, match="padding_candidate is 'middle'"):
        numbered(2).padding(1, "middle")


def test_concat_refuses_what_does_not_fit() -> None:
    base = numbered(2)
    for other, message in (
        (numbered(1).select([]), r"part 1 lacks the tensor columns \['i'\] and adds \[\]"),
        (numbered(1).select(None, []), r"part 1 lacks the non-tensor columns \['s'\]"),
        (
            DataProto.from_dict({"i": torch.zeros(1)}, {"s": ["a"]}),
            r"column 'i': part 0 has .*int64.*part 1 has .*float32",
        ),
        (
            DataProto.from_dict({"i": torch.zeros(1, 2).long()}, {"s": ["a"]}),
            r"column 'i': part 0 has .*expected the same",
        ),
        (DataProto.from_dict(None, {"s": ["a"]}), r"part 1 lacks the tensor columns \['i'\]"),
    ):
        with pytest.raises(MergeError, match=message):
            DataProto.concat([base, other])
        with pytest.raises(MergeError):
            DataProto.concat([other, base])
    with pytest.raises(MergeError, match="concat got no batches"):
        DataProto.concat([])
    with pytest.raises(ColumnTypeError, match="part 1 is a int"):
        DataProto.concat([base, 3])  # type: ignore[type-var]


def test_concat_of_arrays_converts_no_values() -> None:
    def holding(array: Any) -> DataProto:
        return DataProto.from_dict(None, {"n": array})

    joined = DataProto.concat([holding(np.array(["a"])), holding(np.array(["bcd"]))])
    assert list(joined["n"]) == ["a", "bcd"]
    with pytest.raises(MergeError, match=r"non-tensor column 'n': part 0 has int64.*part 1 has float64"):
        DataProto.concat([holding(np.array([2**60 + 1])), holding(np.array([0.5]))])


def test_concat_of_one_is_a_copy() -> None:
    batch = numbered(2)
    DataProto.concat([batch])["i"].fill_(7)
    assert batch["i"].tolist() == [0, 1]


def test_zero_rows_go_everywhere() -> None:
    empty = numbered(3)[[False] * 3]
    assert [len(piece) for piece in empty.chunk(2)] == [0, 0]
    joined = DataProto.concat(empty.chunk(2))
    assert (len(joined), joined["i"].dtype, joined["s"].dtype) == (0, torch.int64, object)


NARROW = [
    dtype for name in ("int4", "uint4", "uint1", "bits8", "float8_e8m0fnu") if (dtype := getattr(torch, name, None))
]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_dtypes_that_torch_has_hardly_an_operator_for(dtype: torch.dtype) -> None:
    raw = torch.arange(8, dtype=torch.uint8)
    jagged = torch.nested.nested_tensor_from_jagged(raw.view(dtype), torch.tensor([0, 2, 2, 7, 8]))
    batch = DataProto.from_dict({"x": raw.view(4, 2).view(dtype), "j": jagged})
    made = [
        batch.repeat(2)[::2],
        pickle.loads(pickle.dumps(batch[::-1]))[::-1],
        DataProto.concat(batch.chunk(3, uneven="split")),
        batch.clone(),
        unfold_batch_dim(fold_batch_dim(batch, 2)),
        batch.select_idxs([3, 0, 1, 2])[[1, 2, 3, 0]],
        copy.deepcopy(batch).to("cpu"),
        collate_fn(list(batch)),
    ]
    for other in made:
        assert other["x"].dtype == other["j"].dtype == dtype
        assert [row.view(torch.uint8).tolist() for row in other["x"]] == raw.view(4, 2).tolist()
        assert [row.view(torch.uint8).tolist() for row in other["j"].unbind()] == [[0, 1], [], [2, 3, 4, 5, 6], [7]]
        assert other.equals(batch)
    narrow = batch.unfold_column_chunks(2, ["x"]).select(["x"])
    assert narrow["x"].view(torch.uint8).tolist() == [[row] for row in range(8)]
