"""Jagged tensors as batches; a list of dense rows is what they are compared with."""

from __future__ import annotations

from typing import Any

import pytest
from fanfold.dispatch import BatchTypeError, Dispatch, batch_type_of, register, run_inline
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*prototype stage.*:UserWarning")


class Worker:
    @register(Dispatch.DP_COMPUTE_PROTO)
    def same(self, batch: Any) -> Any:
        assert batch.is_nested
        return batch

    @register(Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def padded(self, batch: Any) -> Any:
        assert batch.shape[0] == 2
        return batch

    @register(Dispatch.DP_COMPUTE_PROTO, balance=lambda batch: batch.offsets().diff().tolist())
    def balanced(self, batch: Any) -> Any:
        return batch


def plain(lengths: list[int]) -> Any:
    """Rows [n] of running numbers."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(torch.arange(int(offsets[-1])), offsets)


def last_ragged(lengths: list[int]) -> Any:
    """Rows [2, n, 3] whose ragged dimension is not the first."""
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = torch.arange(6 * int(offsets[-1])).reshape(2, -1, 3)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=2)


def with_gaps(lengths: list[int]) -> Any:
    """Rows narrowed out of longer ones, so that there are values between them."""
    values = torch.arange(10 * len(lengths)).reshape(len(lengths), 10)
    starts = torch.arange(len(lengths)) % 3
    return torch.nested.narrow(values, 1, starts, torch.tensor(lengths), layout=torch.jagged)


def with_margins(lengths: list[int]) -> Any:
    """Values before the first row and after the last."""
    offsets = torch.tensor([2, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(torch.arange(int(offsets[-1]) + 3), offsets)


def rows_of(tensor: Any) -> list[Any]:
    """The oracle: each row by itself, cut out of the values."""
    axis = next(dim for dim, size in enumerate(tensor.shape) if dim and not isinstance(size, int)) - 1
    offsets = tensor.offsets().tolist()
    lengths = tensor.offsets().diff().tolist() if tensor.lengths() is None else tensor.lengths().tolist()
    return [
        tensor.values().narrow(axis, start, length).tolist()
        for start, length in zip(offsets[:-1], lengths, strict=True)
    ]


some_lengths = st.lists(st.integers(0, 6), min_size=1, max_size=9)


@settings(max_examples=60)
@given(some_lengths, st.sampled_from([plain, last_ragged, with_gaps, with_margins]), st.data())
def test_rows_are_those_of_the_dense_rows(lengths: list[int], make: Any, data: st.DataObject) -> None:
    tensor = make(lengths)
    batch_type, dense = batch_type_of(tensor), rows_of(tensor)
    assert batch_type is not None
    assert batch_type.length(tensor) == len(lengths)
    start = data.draw(st.integers(0, len(lengths)))
    stop = data.draw(st.integers(start, len(lengths)))
    cut = batch_type.rows(tensor, start, stop)
    assert rows_of(cut) == dense[start:stop]
    picks = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=12))
    picked = batch_type.pick(tensor, picks)
    assert rows_of(picked) == [dense[row] for row in picks]
    joined = batch_type.concat([cut, picked, tensor])
    assert rows_of(joined) == [*dense[start:stop], *(dense[row] for row in picks), *dense]
    assert joined.dtype == tensor.dtype
    assert rows_of(tensor) == dense


@pytest.mark.parametrize("method", ["same", "balanced"])
@pytest.mark.parametrize("lengths", [[], [4], [0, 3], [1, 2, 3, 0, 5]])
def test_jagged_tensors_come_back_in_order(method: str, lengths: list[int]) -> None:
    assert rows_of(run_inline(method, [Worker()] * 3, plain(lengths))) == rows_of(plain(lengths))


def test_padding_repeats_a_row_and_is_removed() -> None:
    assert rows_of(run_inline("padded", [Worker()] * 3, plain([1, 2, 3, 0]))) == rows_of(plain([1, 2, 3, 0]))


def test_gradients_pass() -> None:
    values = torch.arange(6.0, requires_grad=True)
    tensor = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 1, 3, 6]))
    batch_type = batch_type_of(tensor)
    assert batch_type is not None
    weighted = batch_type.concat([batch_type.rows(tensor, 1, 3), batch_type.pick(tensor, [1])])
    weighted.values().sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0, 2, 2, 1, 1, 1]


def test_bytes_are_those_of_the_values() -> None:
    batch_type = batch_type_of(plain([1, 2]))
    assert batch_type is not None
    assert batch_type.nbytes is not None
    assert batch_type.nbytes(plain([1, 2])) == 24


def test_the_other_layout_is_refused_with_a_way_out() -> None:
    strided = torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)])
    with pytest.raises(
        BatchTypeError,
        match=r"^got a nested tensor with layout=torch\.strided, whose rows torch can neither cut nor put together; "
        r"make it with layout=torch\.jagged, or send it whole with Replicate\(x\)$",
    ):
        run_inline("same", [Worker()] * 2, strided)
