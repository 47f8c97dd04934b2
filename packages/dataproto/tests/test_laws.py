"""The laws, over batches of every kind (see conftest.py). What rows hold is judged by conftest's own reading."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fanfold.dataproto import (
    DataProto,
    MergeError,
    deserialize_tensordict,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    serialize_tensordict,
    unfold_batch_dim,
    unpad_dataproto,
)
from fanfold.dataproto.columns import is_tree

Picture: TypeAlias = Callable[[DataProto], Any]
Rows: TypeAlias = Callable[[DataProto], list[dict[str, Any]]]
any_batch = st.from_type(DataProto)
numbers = st.integers(1, 7)


@given(batch=any_batch, pieces=numbers)
def test_concat_of_chunks_is_the_batch(batch: DataProto, pieces: int, picture: Picture, rows_of: Rows) -> None:
    chunks = batch.chunk(pieces, uneven="split")
    sizes = [len(chunk) for chunk in chunks]
    assert len(chunks) == pieces
    assert max(sizes) - min(sizes) <= 1
    assert [row for chunk in chunks for row in rows_of(chunk)] == rows_of(batch)
    joined = DataProto.concat(chunks)
    assert joined.equals(batch)
    assert picture(joined) == picture(batch)


@given(batch=any_batch, size=numbers)
def test_concat_of_splits_is_the_batch(batch: DataProto, size: int, picture: Picture) -> None:
    pieces = batch.split(size)
    assert all(len(piece) == size for piece in pieces[:-1])
    assert sum(len(piece) for piece in pieces) == len(batch)
    if pieces:
        assert picture(DataProto.concat(pieces)) == picture(batch)


@given(batch=any_batch, divisor=numbers)
def test_unpad_of_pad_is_the_batch(batch: DataProto, divisor: int, picture: Picture, rows_of: Rows) -> None:
    padded, added = pad_dataproto_to_divisor(batch, divisor)
    assert len(padded) % divisor == 0 or not len(batch)
    assert rows_of(padded)[len(batch) :] == [
        rows_of(batch)[row % len(batch)] for row in range(len(padded) - len(batch))
    ]
    assert added == len(padded) - len(batch)
    restored = unpad_dataproto(padded, added)
    assert picture(restored) == picture(batch)


@given(batch=any_batch, protocol=st.integers(2, 5))
def test_pickle_in_band(batch: DataProto, protocol: int, picture: Picture) -> None:
    assert picture(pickle.loads(pickle.dumps(batch, protocol))) == picture(batch)


@given(batch=any_batch, readonly=st.booleans(), first=st.integers(0, 6), count=st.integers(0, 6))
def test_pickle_out_of_band(batch: DataProto, readonly: bool, first: int, count: int, picture: Picture) -> None:
    sent = batch[first : first + count]
    buffers: list[Any] = []
    stream = pickle.dumps(sent, 5, buffer_callback=buffers.append)
    arrived = [bytes(buffer.raw()) if readonly else bytearray(buffer.raw()) for buffer in buffers]
    received = pickle.loads(stream, buffers=arrived)
    assert len(received) == len(sent)
    assert received[0:2].equals(sent[0:2])
    assert picture(received) == picture(sent)
    scribble(received)
    if readonly:
        assert picture(pickle.loads(stream, buffers=arrived)) == picture(sent)


@given(batch=any_batch)
def test_load_of_save_is_the_batch(
    batch: DataProto, tmp_path_factory: pytest.TempPathFactory, picture: Picture
) -> None:
    path = tmp_path_factory.getbasetemp() / "law.safetensors"
    batch.save(path)
    loaded = DataProto.load(path)
    assert picture(loaded) == picture(batch)
    scribble(loaded)
    assert picture(DataProto.load(path)) == picture(batch)


@given(batch=any_batch, data=st.data())
def test_a_permutation_and_its_inverse(batch: DataProto, data: st.DataObject, picture: Picture, rows_of: Rows) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(batch)))), dtype=torch.int64)
    moved = batch[order]
    assert rows_of(moved) == [rows_of(batch)[row] for row in order.tolist()]
    assert picture(moved[order.argsort()]) == picture(batch)
    again = batch.clone()
    again.reorder(order.tolist())
    assert picture(again) == picture(moved)


@given(batch=any_batch, data=st.data())
def test_every_index_form_gives_the_same_rows(batch: DataProto, data: st.DataObject, rows_of: Rows) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch)))
    wanted = [row for row, taken in enumerate(mask) if taken]
    forms: list[Any] = [wanted, mask, torch.tensor(wanted, dtype=torch.int64), torch.tensor(mask, dtype=torch.bool)]
    forms += [[row - len(batch) for row in wanted], torch.tensor(mask, dtype=torch.bool).numpy()]
    for form in forms:
        assert rows_of(batch[form]) == [rows_of(batch)[row] for row in wanted]
    part = data.draw(st.slices(len(batch)))
    assert rows_of(batch[part]) == rows_of(batch)[part]


@given(batch=any_batch, times=st.integers(0, 3))
def test_repeat_then_stride_is_the_batch(batch: DataProto, times: int, picture: Picture, rows_of: Rows) -> None:
    together, apart = batch.repeat(times), batch.repeat(times, interleave=False)
    assert rows_of(together) == [row for row in rows_of(batch) for _ in range(times)]
    assert rows_of(apart) == rows_of(batch) * times
    if times:
        assert picture(together[::times]) == picture(batch)
        assert picture(apart[: len(batch)]) == picture(batch)
    assert picture(batch.sample_level_repeat([times] * len(batch))) == picture(together)


@given(batch=any_batch, groups=st.integers(1, 6))
def test_unfold_of_fold_is_the_batch(batch: DataProto, groups: int, picture: Picture) -> None:
    # Without a column nothing says how many rows a group had.
    if len(batch) % groups == 0 and (batch.non_tensor_batch or batch.schema().columns):
        folded = fold_batch_dim(batch, groups)
        assert len(folded) == groups
        assert picture(unfold_batch_dim(folded)) == picture(batch)


@given(batch=any_batch, data=st.data())
def test_union_is_idempotent_and_all_or_nothing(batch: DataProto, data: st.DataObject, picture: Picture) -> None:
    before = picture(batch)
    united = batch.clone().union(batch)
    assert picture(united) == before
    other = data.draw(any_batch)
    mine, theirs = batch.clone(), picture(other)
    try:
        mine.union(other)
    except MergeError:
        assert picture(mine) == before
        with pytest.raises(MergeError):
            batch | other
    else:
        assert picture(batch | other) == picture(mine)
        assert set((batch | other).columns) == set(batch.columns) | set(other.columns)
        assert set(mine.meta_info) == set(batch.meta_info) | set(other.meta_info)
        assert set(mine.non_tensor_batch) == set(batch.non_tensor_batch) | set(other.non_tensor_batch)
    assert picture(batch) == before
    assert picture(other) == theirs


@given(batch=any_batch)
def test_from_tensordict_of_to_tensordict(batch: DataProto, rows_of: Rows, picture: Picture) -> None:
    plain = batch.to_tensordict()
    assert plain.batch_size == torch.Size([len(batch)])
    again = DataProto.from_tensordict(plain)
    assert rows_of(again) == rows_of(batch)
    assert picture(again)[4] == picture(batch)[4]
    assert set(again.non_tensor_batch) == set(batch.non_tensor_batch)
    # A stack of no rows, or of strings, does not know the dtype that its rows came from; no column at all is no part.
    widths = any(array.dtype.kind in "US" for array in batch.non_tensor_batch.values())
    if len(batch) and not widths and (batch.batch is None or list(batch.batch.keys())):
        assert picture(again) == picture(batch)


@given(batch=any_batch)
def test_plain_tuples_and_back(batch: DataProto, picture: Picture) -> None:
    if batch.batch is not None:
        again = DataProto(deserialize_tensordict(serialize_tensordict(batch.batch)))
        assert picture(again) == picture(batch.select(None, [], []))


Operation: TypeAlias = Callable[[DataProto], DataProto]
COPYING: dict[str, Operation] = {
    "clone": lambda x: x.clone(),
    "deepcopy": copy.deepcopy,
    "select deep": lambda x: x.select(deepcopy=True),
    "index": lambda x: x[list(range(len(x)))],
    "concat": lambda x: DataProto.concat([x]),
    "repeat": lambda x: x.repeat(1),
    "repeat apart": lambda x: x.repeat(1, interleave=False),
    "sample level": lambda x: x.sample_level_repeat([1] * len(x)),
    "unfold chunks": lambda x: x.unfold_column_chunks(1),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "pad": lambda x: x.chunk(1, uneven="pad")[0].clone(),
}
SHARING: dict[str, Operation] = {
    "copy": copy.copy,
    "select": lambda x: x.select(),
    "slice": lambda x: x[:],
    "chunk": lambda x: x.chunk(1)[0],
    "fold": lambda x: fold_batch_dim(x, 1),
    "readonly": lambda x: x.readonly(),
    "from_parts_of": DataProto.from_parts_of,
    "mini batch": lambda x: next(iter(x.mini_batches(max(1, len(x)))), x.select()),
}


@pytest.mark.parametrize("name", [*COPYING, *SHARING])
@settings(max_examples=max(20, settings().max_examples // 6))
@given(batch=any_batch)
def test_inputs_stay_and_metadata_is_never_shared(name: str, batch: DataProto, picture: Picture) -> None:
    before = picture(batch)
    made = {**COPYING, **SHARING}[name](batch)
    assert picture(batch) == before
    for value in list(made.meta_info.values()):
        spoil(value)
    made.meta_info["new"] = 1
    made.non_tensor_batch["new"] = torch.zeros(len(made)).numpy()
    if made.batch is not None:
        made.batch["new"] = torch.zeros(len(made))
    if name in COPYING:
        scribble(made)
    assert picture(batch) == before


def spoil(value: Any) -> None:
    if isinstance(value, list):
        value.append("spoilt")
        spoil(value[0])
    elif isinstance(value, dict):
        for item in list(value.values()):
            spoil(item)
        value["spoilt"] = True


def scribble(batch: DataProto) -> None:
    """Write into every tensor and numeric array that can be reached."""
    columns = {} if batch.batch is None else dict(batch.batch.items())
    for column in columns.values():
        _scribble_column(column)
    for array in batch.non_tensor_batch.values():
        if array.dtype != object and array.size:
            array[...] = array.dtype.type(1) if array.dtype.kind != "M" else array.dtype.type(1, "s")


def _scribble_column(column: Any) -> None:
    if is_tree(column):
        for leaf in column.values():
            _scribble_column(leaf)
    elif isinstance(column, torch.Tensor):
        values = column.values() if column.is_nested else column
        same = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
        values.view(same[values.dtype.itemsize]).fill_(1)


def test_the_temporary_folder_holds_no_leftovers(tmp_path: Path) -> None:
    DataProto.from_dict({"x": torch.zeros(2)}).save(tmp_path / "batch.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["batch.safetensors"]
