from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
from fanfold.dispatch import Rows
from hypothesis import given
from hypothesis import strategies as st


def test_rows_are_a_sequence_that_is_sliced_into_rows() -> None:
    rows = Rows(["a", "b", "c"])
    assert isinstance(rows, Sequence)
    assert rows[1] == "b"
    assert rows[1:] == Rows(["b", "c"])
    assert list(rows) == ["a", "b", "c"]
    assert "b" in rows
    assert rows.index("c") == 2
    assert repr(rows) == "Rows(['a', 'b', 'c'])"
    assert rows != ["a", "b", "c"]
    assert hash(rows) == hash(Rows("abc"))


def test_rows_do_not_follow_the_list_they_were_made_of() -> None:
    items = [1, 2]
    rows = Rows(items)
    items.append(3)
    assert rows == Rows([1, 2])
    with pytest.raises(TypeError):
        rows[0] = 5  # type: ignore[index]


@given(st.lists(st.integers()), st.integers(1, 9))
def test_concat_undoes_chunk(items: list[int], chunks: int) -> None:
    parts = Rows(items).chunk(chunks)
    assert len(parts) == chunks
    assert Rows.concat(parts) == Rows(items)


def test_rows_pickle() -> None:
    assert pickle.loads(pickle.dumps(Rows([1, "x", None]))) == Rows([1, "x", None])
