from __future__ import annotations

import pytest
import torch
from fanfold.megatron import BatchError
from fanfold.megatron.rows import RowLimits, read_rows
from hypothesis import given
from hypothesis import strategies as st

LIMITS = RowLimits(vocab_size=256, max_sequence_length=64)
spans = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7), st.integers(0, 5)), min_size=0, max_size=5)


def columns(spans: list[tuple[int, int, int]], width: int = 17) -> dict[str, torch.Tensor]:
    mask = torch.zeros(len(spans), width, dtype=torch.int64)
    for row, (left, length, _) in enumerate(spans):
        mask[row, left : left + length] = 1
    ids = torch.randint(1, 256, mask.shape, generator=torch.Generator().manual_seed(3))
    return {"input_ids": ids, "attention_mask": mask}


@given(spans=spans, multiple=st.sampled_from([1, 2, 4]))
def test_every_token_is_there_once_and_predicted_by_the_one_before(
    spans: list[tuple[int, int, int]], multiple: int
) -> None:
    given_columns = columns(spans)
    rows = read_rows(given_columns, RowLimits(256, 64, multiple))
    assert rows.tokens.shape[1] % multiple == 0
    for row, (left, length, _) in enumerate(spans):
        own = given_columns["input_ids"][row, left : left + length].tolist()
        behind = rows.tokens.shape[1] - length
        assert rows.tokens[row].tolist() == own + [0] * behind
        assert rows.labels[row].tolist() == own[1:] + [0] * (behind + 1)
        assert rows.weights[row].tolist() == [1.0] * (length - 1) + [0.0] * (behind + 1)


@given(spans=spans)
def test_values_go_back_to_where_the_tokens_were(spans: list[tuple[int, int, int]]) -> None:
    given_columns = columns(spans)
    rows = read_rows(given_columns, LIMITS)
    back = rows.at_callers_positions(rows.labels)
    first = torch.tensor([left for left, _, _ in spans], dtype=torch.int64)
    wanted = given_columns["input_ids"] * given_columns["attention_mask"]
    wanted[torch.arange(len(spans)), first] = 0
    assert torch.equal(back, wanted)


@given(spans=spans, size=st.integers(1, 4))
def test_micro_batches_cover_every_row_once(spans: list[tuple[int, int, int]], size: int) -> None:
    rows = read_rows(columns(spans), LIMITS)
    parts = list(rows.micro_batches(size, len(spans) // size + 1))
    assert all(len(part) == size for part in parts)
    together = torch.cat([part.tokens for part in parts])
    assert torch.equal(together[: len(spans)], rows.tokens)
    assert together[len(spans) :].abs().sum() == 0
    assert sum(part.target_count for part in parts) == rows.target_count == sum(length - 1 for _, length, _ in spans)


def test_padding_rows_and_loss_mask_take_weight_away() -> None:
    given_columns = columns([(0, 4, 0), (2, 4, 0), (0, 4, 0)], width=6)
    given_columns["loss_mask"] = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 1, 0], [1] * 6])
    rows = read_rows(given_columns, LIMITS, padding=1)
    assert rows.weights.tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_further_columns_are_read_where_the_label_is() -> None:
    given_columns = columns([(2, 3, 0)], width=6)
    given_columns["advantages"] = torch.arange(6.0)[None, :]
    rows = read_rows(given_columns, LIMITS, extra=("advantages",))
    assert rows.columns["advantages"].tolist() == [[3.0, 4.0, 0.0]]


def test_no_rows_are_rows_too() -> None:
    rows = read_rows(columns([]), RowLimits(256, 64, 4))
    assert (len(rows), rows.tokens.shape, rows.target_count) == (0, (0, 4), 0.0)


def _changed(name: str, value: torch.Tensor | None, spans: list[tuple[int, int, int]]) -> dict[str, torch.Tensor]:
    changed = columns(spans, width=8)
    if value is None:
        del changed[name]
    else:
        changed[name] = value
    return changed


THREE = [(0, 4, 0), (2, 6, 0), (0, 8, 0)]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (_changed("attention_mask", None, THREE), "the batch has no column 'attention_mask'; it has input_ids"),
        (
            _changed("attention_mask", torch.ones(3, 7), THREE),
            "column 'attention_mask' must be [rows, tokens] like input_ids; got (3, 7)",
        ),
        (_changed("input_ids", torch.ones(3, 8), THREE), "column 'input_ids' must be whole numbers; got torch.float32"),
        (
            _changed("attention_mask", torch.tensor([[1] * 8, [1] * 8, [1, 0] * 4]), THREE),
            "row 2 of this rank's 3 has a hole",
        ),
        (
            _changed("attention_mask", torch.tensor([[1] * 8, [0] * 8, [0] * 8]), THREE),
            "row 1 of this rank's 3 (and 1 more: 2) has no token at all",
        ),
        (
            _changed("position_ids", torch.arange(8).expand(3, 8), THREE),
            "row 1 of this rank's 3 has position_ids that do not count 0, 1, 2",
        ),
        (
            _changed("input_ids", torch.tensor([[1] * 8, [1] * 8, [1, 300, 1, 1, 1, 1, 1, 400]]), THREE),
            "row 2 of this rank's 3 has the token 300, and the model's vocabulary is 0 to 255",
        ),
        (
            _changed("input_ids", torch.tensor([[-1] * 8, [1] * 8, [1] * 8]), THREE),
            "row 0 of this rank's 3 has the token -1",
        ),
    ],
)
def test_rows_that_cannot_be_used(wrong: dict[str, torch.Tensor], text: str) -> None:
    with pytest.raises(BatchError) as caught:
        read_rows(wrong, LIMITS)
    assert text in str(caught.value)


def test_a_row_longer_than_the_model() -> None:
    with pytest.raises(
        BatchError, match="row 2 of this rank's 3 has 8 tokens, more than the model's max_sequence_length=7"
    ):
        read_rows(columns(THREE, width=8), RowLimits(256, 7))


def test_tokens_in_the_padding_do_not_matter() -> None:
    given_columns = columns([(0, 4, 0)], width=8)
    given_columns["input_ids"][0, 4:] = 999
    assert read_rows(given_columns, LIMITS).tokens.tolist()[0] == given_columns["input_ids"][0, :4].tolist()
