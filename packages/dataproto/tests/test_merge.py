from typing import Any

import numpy as np
import pytest
import torch

from fanfold.dataproto import ColumnTypeError, DataProto, MergeError, deep_equal


def holding(**meta: Any) -> DataProto:
    return DataProto.from_dict({"a": torch.zeros(1)}, meta_info=meta)


def merged(*metas: dict[str, Any], **rules: Any) -> dict[str, Any]:
    return DataProto.concat([holding(**meta) for meta in metas], merge=rules or None).meta_info


def test_keys_of_all_parts_stay() -> None:
    one, two = holding(cfg="A"), holding(extra=5, cfg="A")
    assert DataProto.concat([one, two]).meta_info == {"cfg": "A", "extra": 5}
    assert one.meta_info == {"cfg": "A"}


def test_equal_values_of_any_kind_pass() -> None:
    value = {"nan": float("nan"), "t": torch.tensor([1.0, float("nan")]), "a": [np.arange(3), {"deep": None}]}
    again = {"nan": float("nan"), "t": torch.tensor([1.0, float("nan")]), "a": [np.arange(3), {"deep": None}]}
    assert deep_equal(merged({"v": value}, {"v": again})["v"], value)


def test_a_conflict_names_key_positions_and_values() -> None:
    with pytest.raises(
        MergeError, match=r"meta_info\['lr'\] differs between batches \(part 0: 0.1, part 2: 0.2\).*merge="
    ):
        merged({"lr": 0.1}, {}, {"lr": 0.2})


def test_metrics_become_lists_once() -> None:
    parts: list[dict[str, Any]] = [
        {"metrics": {"loss": 1.0}},
        {"metrics": {"loss": 2.0, "kl": 0.1}},
        {"metrics": None},
        {},
    ]
    once = merged(*parts)
    assert once == {"metrics": {"loss": [1.0, 2.0], "kl": [0.1]}}
    assert merged(once) == once
    assert merged(once, {"metrics": [{"loss": 3.0}, {"loss": 4.0}]}) == {
        "metrics": {"loss": [1.0, 2.0, 3.0, 4.0], "kl": [0.1]}
    }
    with pytest.raises(MergeError, match=r"meta_info\['metrics'\] holds 3; expected a dict"):
        merged({"metrics": 3})


def test_timings_are_merged_without_being_asked() -> None:
    timing = merged(
        {"timing": {"gen": 12.5, "gen/max": 14.0}}, {"timing": {"gen": 13.5, "gen/max": 15.0, "gen/min": 2}}
    )["timing"]
    assert timing == {"gen": 13.0, "gen/max": 15.0, "gen/min": 2}
    assert merged({"timing_s/step": 1.0}, {"timing_s/step": 3.0}) == {"timing_s/step": 2.0}
    assert merged({"timing": {"host": "a"}}, {"timing": {"host": "b"}}) == {"timing": {"host": "a"}}


@pytest.mark.parametrize(
    ("rule", "result"),
    [
        ("first", 1), ("last", 4), ("mean", 2.5), ("sum", 5), ("min", 1), ("max", 4), ("list", [1, 4]),
        (lambda values: values[0] * 10 + values[1], 14),
    ],
)  # fmt: skip
def test_rules(rule: Any, result: Any) -> None:
    assert merged({"v": 1}, {"v": 4}, v=rule) == {"v": result}


def test_the_rules_of_a_concat_are_for_that_one() -> None:
    parts = [DataProto.from_dict({"x": torch.zeros(1)}, meta_info={"v": value, "w": value}) for value in (1, 4)]
    for part in parts:
        part.merge_rules = {"w": "sum"}
    whole = DataProto.concat(parts, merge={"v": max, "w": "first"})
    assert (whole.meta_info, whole.merge_rules) == ({"v": 4, "w": 1}, {"w": "sum"})
    with pytest.raises(MergeError, match="'v'"):
        DataProto.concat([whole, parts[0]])


def test_rules_on_tensors_and_arrays() -> None:
    tensors = [{"v": torch.tensor([1, 4])}, {"v": torch.tensor([3, 2])}]
    assert merged(*tensors, v="max")["v"].tolist() == [3, 4]
    assert merged(*tensors, v="mean")["v"].tolist() == [2.0, 3.0]
    arrays = [{"v": np.array([1, 4])}, {"v": np.array([3, 2])}]
    assert merged(*arrays, v="min")["v"].tolist() == [1, 2]
    assert merged(*arrays, v="sum")["v"].tolist() == [4, 6]


def test_equal_values_are_still_summed_and_listed() -> None:
    assert merged({"v": 2}, {"v": 2}, v="sum") == {"v": 4}
    assert merged({"v": 2}, {"v": 2}, v="list") == {"v": [2, 2]}
    assert merged({"v": 2}, {"v": 2}, v="max") == {"v": 2}


def test_rules_that_a_batch_carries() -> None:
    batch = holding(lr=0.1)
    batch.merge_rules = {"lr": "last"}
    joined = DataProto.concat([batch, holding(lr=0.2)])
    assert (joined.meta_info["lr"], joined.merge_rules) == (0.2, {"lr": "last"})
    assert batch.union(holding(lr=0.3)).meta_info["lr"] == 0.3
    other = holding(lr=0.2)
    other.merge_rules = {"lr": "first"}
    with pytest.raises(MergeError, match=r"has the merge rules 'last' and 'first'; expected one"):
        DataProto.concat([batch, other])


def test_rules_that_are_none_and_rules_that_fail() -> None:
    with pytest.raises(ColumnTypeError, match="the merge rule for 'v' is 'mode'"):
        merged({"v": 1}, {"v": 2}, v="mode")
    with pytest.raises(MergeError, match=r"the merge rule 'mean' for meta_info\['v'\] failed on 'a', 'b'"):
        merged({"v": "a"}, {"v": "b"}, v="mean")
    with pytest.raises(MergeError, match=r"differs between batches"):
        merged({"v": 1}, {"v": 2}, v="same")


def test_concat_shares_no_metadata_with_its_parts() -> None:
    one = holding(cfg={"a": [1]}, table=np.zeros(1))
    joined = DataProto.concat([one])
    joined.meta_info["cfg"]["a"].append(2)
    joined.meta_info["table"][0] = 5
    assert (one.meta_info["cfg"], one.meta_info["table"].tolist()) == ({"a": [1]}, [0.0])


class Odd:
    def __eq__(self, other: object) -> bool:
        raise ValueError("compare me not")

    __hash__ = None  # type: ignore[assignment]


def cyclic() -> Any:
    array = np.empty(1, dtype=object)
    array[0] = array
    return array


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (float("nan"), float("nan"), True),
        (np.float32("nan"), np.float32("nan"), True),
        (complex("nan"), complex("nan"), True),
        ([1, [float("nan")]], [1, [float("nan")]], True),
        ([torch.ones(2)], [torch.ones(2)], True),
        ([torch.ones(2)], [torch.ones(2).double()], False),
        (torch.ones(2, 1), torch.ones(2, 3), False),
        (torch.tensor([1, 2], dtype=torch.uint16), torch.tensor([1, 2], dtype=torch.uint16), True),
        (np.array([1, None, np.arange(2)], dtype=object), np.array([1, None, np.arange(2)], dtype=object), True),
        (np.array([1]), np.array([1.0]), False),
        (1, True, False),
        (1, 1.0, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (cyclic(), cyclic(), True),
        (Odd(), Odd(), False),
        (range(3), range(3), True),
        ({1, 2}, {2, 1}, True),
        (None, None, True),
    ],
)
def test_equality_by_content(one: Any, other: Any, same: bool) -> None:
    assert deep_equal(one, other) is same
