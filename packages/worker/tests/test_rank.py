from __future__ import annotations

import os

import pytest
from fanfold.worker import RankEnvironmentError, RankInfo, current_rank, rank_infos
from fanfold.worker.pool import slots_of
from fanfold.worker.rank import CONTRACT, check_worker_environment, enter_context, environment_of, leave_context
from hypothesis import given
from hypothesis import strategies as st

infos = st.builds(
    lambda rank, others, **more: RankInfo(rank=rank, world_size=rank + others, **more),
    rank=st.integers(0, 4095),
    others=st.integers(1, 4096),
    local_rank=st.integers(0, 15),
    local_world_size=st.integers(1, 16),
    node_rank=st.integers(0, 255),
    master_addr=st.sampled_from(["10.0.0.1", "::1", "host-3"]),
    master_port=st.integers(0, 65535),
    group=st.text("abc-", max_size=5),
    backend=st.sampled_from(["inline", "ray"]),
)


@given(infos)
def test_environment_says_all_of_it(info: RankInfo) -> None:
    assert RankInfo.from_environment(info.environment()) == info


def test_contract() -> None:
    assert CONTRACT == (
        "WORLD_SIZE",
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "RAY_LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "WG_PREFIX",
        "WG_BACKEND",
    )


def test_what_launchers_leave_out_is_a_single_node() -> None:
    info = RankInfo.from_environment(
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "[::1]", "MASTER_PORT": "29500", "CUDA_VISIBLE_DEVICES": "0,1"}
    )
    assert info == RankInfo(1, 2, master_addr="::1", master_port=29500, visible_devices=("0", "1"))
    assert info.coordinates == {"node": 0, "local": 0}


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_missing_variable_is_named(missing: str) -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    del environ[missing]
    with pytest.raises(RankEnvironmentError, match=rf"no {missing}.*start it through a group"):
        RankInfo.from_environment(environ)


def test_number_that_is_none() -> None:
    with pytest.raises(RankEnvironmentError, match="RANK must be a whole number; the environment has 'one'"):
        RankInfo.from_environment({"RANK": "one", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_every_rank_is_where_its_number_says(counts: list[int]) -> None:
    told = rank_infos(slots_of(counts), "group", "inline", ("host", 7))
    assert [info.rank for info in told] == list(range(sum(counts)))
    assert {info.world_size for info in told} == {sum(counts)}
    for node, count in enumerate(counts):
        on_node = [info for info in told if info.node_rank == node]
        assert [info.local_rank for info in on_node] == list(range(count))
        assert {info.local_world_size for info in on_node} == {count}
        assert [info.rank for info in on_node] == list(range(on_node[0].rank, on_node[0].rank + count))


def test_current_rank_is_that_of_the_context_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    outer = RankInfo(3, 4, master_addr="10.0.0.1", master_port=1)
    for name, value in outer.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert current_rank() == outer
    inner = RankInfo(0, 1)
    before = enter_context(inner)
    assert current_rank() is inner
    leave_context(before)
    assert current_rank() == outer


def test_no_rank_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RankEnvironmentError):
        current_rank()


def test_worker_environment_is_copied() -> None:
    given_by_user = {"NCCL_DEBUG": "INFO"}
    checked = check_worker_environment(given_by_user)
    assert checked == given_by_user
    assert checked is not given_by_user


@pytest.mark.parametrize("name", CONTRACT)
def test_worker_environment_may_not_say_who_a_rank_is(name: str) -> None:
    with pytest.raises(RankEnvironmentError, match=name):
        check_worker_environment({name: "1"})


def test_worker_environment_takes_text() -> None:
    wrong: dict[str, str] = {"OMP_NUM_THREADS": 1}  # type: ignore[dict-item]
    with pytest.raises(RankEnvironmentError, match="OMP_NUM_THREADS=1"):
        check_worker_environment(wrong)


def test_environment_of_a_new_process() -> None:
    environment = environment_of(RankInfo(1, 2), {"SETTING": "x"})
    assert environment["RANK"] == "1"
    assert environment["SETTING"] == "x"
    assert environment["PATH"] == os.environ["PATH"]
