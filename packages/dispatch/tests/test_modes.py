from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from fanfold.dispatch import Dispatch, DuplicateModeError, Execute, FanfoldError, UnknownModeError

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = [
    "RANK_ZERO",
    "ONE_TO_ALL",
    "ALL_TO_ALL",
    "DP_COMPUTE",
    "DP_COMPUTE_PROTO",
    "DP_COMPUTE_PROTO_WITH_FUNC",
    "DP_COMPUTE_METRIC",
    "DIRECT_ROLLOUT_METHOD",
]


@pytest.fixture
def added() -> Iterator[Dispatch]:
    mode = Dispatch.register("added_by_test", "some.module")
    yield mode
    if "ADDED_BY_TEST" in Dispatch:
        Dispatch.remove("ADDED_BY_TEST")


def test_the_built_in_modes() -> None:
    assert Dispatch.names()[:8] == NAMES
    assert Dispatch.values()[:8] == list(range(8))
    assert [mode.name for mode in Dispatch][:8] == NAMES
    assert repr(Dispatch.ONE_TO_ALL) == "Dispatch.ONE_TO_ALL"
    assert [mode.name for mode in Execute] == ["ALL", "RANK_ZERO"]


def test_members_are_looked_up_by_name() -> None:
    assert Dispatch["RANK_ZERO"] is Dispatch.RANK_ZERO
    assert Dispatch.from_name("rank_zero") is Dispatch.RANK_ZERO
    assert "RANK_ZERO" in Dispatch
    assert Dispatch.RANK_ZERO in Dispatch
    assert "NO_SUCH" not in Dispatch
    assert 3 not in Dispatch
    with pytest.raises(
        UnknownModeError, match=r"^there is no dispatch mode 'nope' in this process; there are RANK_ZERO, "
    ) as caught:
        Dispatch.from_name("nope")
    assert isinstance(caught.value, FanfoldError)
    assert isinstance(caught.value, KeyError)


def test_modes_can_be_added_and_removed(added: Dispatch) -> None:
    assert added.name == "ADDED_BY_TEST"
    assert Dispatch["added_by_test"] is added
    assert getattr(Dispatch, "ADDED_BY_TEST") is added  # noqa: B009  not known to type checkers
    assert added.value not in Dispatch.values()[:8]
    assert len(Dispatch) == len(Dispatch.names())
    with pytest.raises(DuplicateModeError, match="'ADDED_BY_TEST' exists already; choose another name, or change"):
        Dispatch.register("Added_By_Test")
    assert Dispatch.remove("added_by_test") is added
    assert "ADDED_BY_TEST" not in Dispatch
    assert not hasattr(Dispatch, "ADDED_BY_TEST")


def test_a_mode_stays_one_object() -> None:
    assert pickle.loads(pickle.dumps(Dispatch.ONE_TO_ALL)) is Dispatch.ONE_TO_ALL
    assert copy.deepcopy(Dispatch.ONE_TO_ALL) is Dispatch.ONE_TO_ALL
    assert {Dispatch.ONE_TO_ALL: 1}[Dispatch["ONE_TO_ALL"]] == 1


def test_another_process_is_told_what_to_import(added: Dispatch) -> None:
    program = f"import pickle; pickle.loads({pickle.dumps(added)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert (
        "UnknownModeError: dispatch mode 'ADDED_BY_TEST' is not registered in this process; import some.module there "
        "first: it registers the mode" in done.stderr
    )
