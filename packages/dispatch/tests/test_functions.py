from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from dispatch_fakes import Group, Table, table
from fanfold.dispatch import (
    CollectError,
    DirectCallError,
    Dispatch,
    DivideError,
    Mesh,
    Replicate,
    Rows,
    collect_all_to_all,
    collect_dp_compute,
    collect_dp_compute_data_proto,
    collect_lazy_compute_data_proto,
    collect_nd_compute,
    collect_nd_compute_dataproto,
    dispatch_all_to_all,
    dispatch_dp_compute,
    dispatch_dp_compute_data_proto,
    dispatch_dp_compute_data_proto_with_func,
    dispatch_lazy_compute_data_proto,
    dispatch_nd_compute,
    dispatch_nd_compute_dataproto,
    dispatch_one_to_all,
    dummy_direct_rollout_call,
    get_predefined_dispatch_fn,
    make_nd_compute_dataproto_dispatch_fn,
)

GROUP = Group(2, Mesh.from_dp_ranks("train", [1, 0], [True, True]))


def x_of(parts: list[Any]) -> list[Any]:
    return [part["x"] for part in parts]


def test_one_to_all() -> None:
    assert dispatch_one_to_all(GROUP, 1, [2, 3], k="v") == (([1, 1], [[2, 3], [2, 3]]), {"k": ["v", "v"]})


def test_all_to_all() -> None:
    assert dispatch_all_to_all(GROUP, [1, 2], k=(3, 4)) == (([1, 2],), {"k": [3, 4]})
    assert dispatch_all_to_all(GROUP, 1) == (([1, 1],), {})
    assert collect_all_to_all(GROUP, [5, 6]) == [5, 6]


def test_dp_compute() -> None:
    assert dispatch_dp_compute(GROUP, (1, 2), k=[3, 4]) == (([1, 2],), {"k": [3, 4]})
    with pytest.raises(
        DivideError, match=r"dispatch_dp_compute: argument 'args\[0\]' has one item per rank; got a list of 3"
    ):
        dispatch_dp_compute(GROUP, [1, 2, 3])
    assert collect_dp_compute(GROUP, (5, 6)) == [5, 6]
    with pytest.raises(CollectError, match="collect_dp_compute: got 1 entries, expected one for each of 2 ranks"):
        collect_dp_compute(GROUP, [5])


def test_rows_over_all_ranks() -> None:
    (parts, whole), keywords = dispatch_dp_compute_data_proto(GROUP, table(3), 7, k=table(3))
    assert x_of(parts) == x_of(keywords["k"]) == [[0, 1], [2]]
    assert whole == [7, 7]
    assert collect_dp_compute_data_proto(GROUP, parts) == table(3)
    assert collect_dp_compute_data_proto(GROUP, [1, 2]) == [1, 2]
    with pytest.raises(CollectError, match="results cannot be put together, got rank 0: Table, rank 1: int"):
        collect_dp_compute_data_proto(GROUP, [table(1), 2])


def test_no_rows_at_all() -> None:
    functions = get_predefined_dispatch_fn(Dispatch.DP_COMPUTE_PROTO)
    (pieces,), keywords = functions["dispatch_fn"](GROUP, table(0))
    assert ([len(piece) for piece in pieces], keywords) == ([0, 0], {})
    assert functions["collect_fn"](GROUP, pieces) == table(0)


def test_nothing_is_padded_where_nobody_would_take_it_off_again() -> None:
    class Wishing(Table):
        def is_padding_enabled(self) -> bool:
            return True

    (parts,), _ = dispatch_dp_compute_data_proto(GROUP, Wishing({"x": [1, 2, 3]}))
    assert x_of(parts) == [[1, 2], [3]]


def test_marks_work_in_direct_calls() -> None:
    (parts,), _ = dispatch_dp_compute_data_proto(GROUP, Replicate(Rows("ab")))
    assert parts == [Rows("ab"), Rows("ab")]


def test_a_function_first() -> None:
    (functions, parts), _ = dispatch_dp_compute_data_proto_with_func(GROUP, len, table(2))
    assert functions == [len, len]
    assert x_of(parts) == [[0], [1]]


def test_rows_along_a_mesh_of_the_group() -> None:
    (parts,), _ = dispatch_lazy_compute_data_proto("train", GROUP, table(3))
    assert x_of(parts) == [[2], [0, 1]]
    assert collect_lazy_compute_data_proto("train", GROUP, parts) == table(3)
    with pytest.raises(CollectError, match="got 3 entries, expected one for each of 2 ranks"):
        collect_lazy_compute_data_proto("train", GROUP, [1, 2, 3])


def test_an_nd_mode_is_a_dict_of_partials() -> None:
    mode = make_nd_compute_dataproto_dispatch_fn(mesh_name="train")
    assert set(mode) == {"dispatch_fn", "collect_fn"}
    assert isinstance(mode["dispatch_fn"], partial)
    (parts,), _ = mode["dispatch_fn"](GROUP, table(2))
    assert mode["collect_fn"](GROUP, parts) == table(2)


def test_nd_fan_out_of_ready_parts() -> None:
    group = Group(4)
    assert dispatch_nd_compute([1, 1, 0, 0], 2, group, ["a", "b"], k=("c", "d")) == (
        (["b", "b", "a", "a"],),
        {"k": ["d", "d", "c", "c"]},
    )
    assert dispatch_nd_compute([1, 1, 0, 0], 2, group, k=["c", "d"]) == ((), {"k": ["d", "d", "c", "c"]})
    with pytest.raises(DivideError, match="dispatch_nd_compute: got 1 parts for argument k, expected a list of 2"):
        dispatch_nd_compute([1, 1, 0, 0], 2, group, k=["c"])
    with pytest.raises(
        DivideError, match=r"got data-parallel ranks \[0, 1\] of 2 ranks, expected one for each of 4 ranks"
    ):
        dispatch_nd_compute([0, 1], 2, group)
    with pytest.raises(DivideError, match="covering 0 to 2"):
        dispatch_nd_compute([0, 1, 0, 1], 3, group)


def test_nd_rows_by_data_parallel_rank() -> None:
    group = Group(4)
    (parts, whole), keywords = dispatch_nd_compute_dataproto([1, 1, 0, 0], 2, group, table(3), 5, k=Rows("abc"))
    assert x_of(parts) == [[2], [2], [0, 1], [0, 1]]
    assert parts[0] is parts[1]  # cut once, shared by the ranks that read it
    assert whole == [5] * 4
    assert keywords["k"] == [Rows("c"), Rows("c"), Rows("ab"), Rows("ab")]


def test_nd_collect_by_mask() -> None:
    group = Group(4)
    mask = [False, True, True, False]
    assert collect_nd_compute(mask, group, "abcd") == ["b", "c"]
    parts = [None, table(1), table(2), None]
    assert collect_nd_compute_dataproto(mask, group, parts) == Table.concat([table(1), table(2)])
    assert collect_nd_compute_dataproto(mask, group, "abcd") == ["b", "c"]
    with pytest.raises(CollectError, match="got a collect_mask without a true entry, expected at least one") as caught:
        collect_nd_compute_dataproto([False] * 4, group, "abcd")
    assert caught.value.results == dict(enumerate("abcd"))
    with pytest.raises(
        CollectError, match="collect_nd_compute: collect_mask: got 3 entries, expected one for each of 4"
    ):
        collect_nd_compute([True] * 3, group, "abcd")


def test_direct_methods() -> None:
    with pytest.raises(
        DirectCallError, match=r"called on a worker's own handle \(group\.workers\), not through the group"
    ):
        dummy_direct_rollout_call(GROUP, 1)
    assert issubclass(DirectCallError, NotImplementedError)
