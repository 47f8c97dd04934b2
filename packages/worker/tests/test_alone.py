from __future__ import annotations

import os

import pytest
from fanfold.worker import OnlyRank, RankEnvironmentError, RankInfo, WorkerGroup, current_rank
from fanfold.worker.rank import CONTRACT
from fanfold.worker.testing import Probe


@pytest.fixture(autouse=True)
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CONTRACT:
        monkeypatch.delenv(name, raising=False)


def test_a_worker_can_be_made_as_any_other_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "12345")  # a word of it, from elsewhere
    before = dict(os.environ)
    with OnlyRank():
        worker = Probe()
        assert (worker.rank, worker.world_size) == (0, 1)
        assert current_rank() == RankInfo(rank=0, world_size=1, visible_devices=current_rank().visible_devices)
    assert dict(os.environ) == before


def test_it_is_so_at_once_until_it_is_closed() -> None:
    before, alone = dict(os.environ), OnlyRank()
    os.environ["SET_MEANWHILE"] = "stays"
    assert current_rank().world_size == 1
    alone.close()
    alone.close()
    assert {**before, "SET_MEANWHILE": os.environ.pop("SET_MEANWHILE")} == {**os.environ, "SET_MEANWHILE": "stays"}
    with pytest.raises(RankEnvironmentError, match=r"does not run on a rank; start it .*, or say OnlyRank\(\)"):
        current_rank()


def test_the_only_rank_of_a_launcher_stays_what_it_is() -> None:
    os.environ.update(RankInfo(rank=0, world_size=1, master_addr="10.0.0.1", master_port=29500).environment())
    before = dict(os.environ)
    with OnlyRank(), OnlyRank():
        assert current_rank().master_addr == "10.0.0.1"
    assert dict(os.environ) == before


def test_one_of_several_is_not_the_only_one() -> None:
    def be_alone(_: Probe) -> None:
        OnlyRank()

    with (
        WorkerGroup([2], Probe) as group,
        pytest.raises(RankEnvironmentError, match="this process is rank 0 of 2 and cannot be the only one"),
    ):
        group.execute(be_alone)
