from __future__ import annotations

import logging
import socket
from dataclasses import replace
from typing import Any

import pytest
from fanfold.worker import MeshError, RankEnvironmentError, RankInfo, Worker, WorkerGroup
from fanfold.worker.ports import own_address
from fanfold.worker.rank import enter_context, leave_context


@pytest.fixture(name="rank")
def _rank() -> Any:
    info = RankInfo(1, 4, 1, 2, 0, "127.0.0.1", 4711, "run-", "inline")
    before = enter_context(info)
    yield info
    leave_context(before)


class DeviceMesh:
    """Has the shape of torch's."""

    def __init__(self, table: Any, names: Any) -> None:
        self.mesh = self
        self._table = table
        self.mesh_dim_names = names

    def tolist(self) -> Any:
        return self._table


def test_who_it_is(rank: RankInfo) -> None:
    worker = Worker()
    assert worker.rank_info == replace(rank, visible_devices=worker.rank_info.visible_devices)
    assert (worker.rank, worker.world_size) == (1, 4)
    assert worker.get_master_addr_port() == ("127.0.0.1", "4711")
    assert Worker.env_keys()[:2] == ["WORLD_SIZE", "RANK"]
    assert worker.get_fused_worker_by_name("actor") is None
    assert not worker.cancelled()


def test_outside_of_any_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RankEnvironmentError, match="does not run on a rank"):
        Worker()


@pytest.mark.parametrize(("text", "told"), [(None, "not set"), ("0,1", "0,1"), ("", "")])
def test_visible_devices(rank: RankInfo, monkeypatch: pytest.MonkeyPatch, text: str | None, told: str) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    worker = Worker()
    assert worker.get_cuda_visible_devices() == told
    listed = None if text is None else tuple(text.split(",")) if text else ()
    assert worker.rank_info.visible_devices == listed


def test_free_port_is_kept_until_its_server_takes_it(rank: RankInfo) -> None:
    worker = Worker()
    address, port = worker.get_available_master_addr_port()
    assert address == "127.0.0.1"
    assert worker.get_available_master_addr_port()[1] != port
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((address, int(port)))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, int(port)))
        server.listen()


@pytest.mark.parametrize("there", ["127.0.0.1", "::1"])
def test_own_address(there: str) -> None:
    assert own_address(seen_from=there) == there


def test_meshes(rank: RankInfo) -> None:
    worker = Worker()
    worker.register_mesh_rank("train", 0, collect=False)
    worker._register_dispatch_collect_info("rollout", 1, True)
    told = worker.get_dispatch_collect()
    assert told == {
        "dispatch_dp_rank": {"train": 0, "rollout": 1},
        "collect_dp_rank": {"train": False, "rollout": True},
    }
    told["dispatch_dp_rank"]["train"] = 9
    assert worker.query_dispatch_info("train") == 0
    assert worker.query_collect_info("rollout") is True
    with pytest.raises(
        MeshError, match=r"Worker on rank 1 registered no mesh 'eval'; it registered \['rollout', 'train'\]"
    ):
        worker.query_collect_info("eval")
    with pytest.raises(MeshError, match="registers mesh 'train' twice"):
        worker.register_mesh_rank("train", 0)
    with pytest.raises(MeshError, match="dp_rank=-1"):
        worker.register_mesh_rank("other", -1)


def test_taking_over_all_meshes_of_another_worker(rank: RankInfo) -> None:
    first, second, third = Worker(), Worker(), Worker()
    first.register_mesh_rank("train", 0, collect=False)
    first.register_mesh_rank("rollout", 1)
    said: dict[str, Any] = first.get_dispatch_collect()
    second.set_dispatch_collect(None, **said)
    assert second.get_dispatch_collect() == first.get_dispatch_collect()
    third.set_dispatch_collect("rollout", **first.get_dispatch_collect())
    assert third.get_dispatch_collect()["dispatch_dp_rank"] == {"rollout": 1}
    with pytest.raises(MeshError, match=r"take over mesh 'eval'.*\['rollout', 'train'\].*several could be meant"):
        third.set_dispatch_collect("eval", **first.get_dispatch_collect())
    second.set_dispatch_collect(**first.get_dispatch_collect())
    with pytest.raises(MeshError, match="registers mesh 'train' twice"):
        second.set_dispatch_collect("train", dispatch_dp_rank={"train": 3}, collect_dp_rank={"train": True})
    with pytest.raises(MeshError, match="collect flags of"):
        third.set_dispatch_collect(dispatch_dp_rank={"a": 0}, collect_dp_rank={})


def test_only_mesh_of_another_worker_may_get_another_name(rank: RankInfo) -> None:
    first, second = Worker(), Worker()
    first.register_mesh_rank("train", 2, collect=False)
    second.set_dispatch_collect(mesh_name="actor", **first.get_dispatch_collect())
    assert second.get_dispatch_collect() == {"dispatch_dp_rank": {"actor": 2}, "collect_dp_rank": {"actor": False}}


def test_mesh_from_a_device_mesh(rank: RankInfo) -> None:
    worker = Worker()
    worker.register_mesh_from(DeviceMesh([[0, 1], [2, 3]], ("dp", "tp")), name="train")
    worker.register_mesh_from(DeviceMesh([[0, 1], [2, 3]], ("pp", "dp")))
    assert worker.get_dispatch_collect() == {
        "dispatch_dp_rank": {"train": 0, "dp": 1},
        "collect_dp_rank": {"train": False, "dp": True},
    }
    with pytest.raises(ValueError, match="no axis 'cp'"):
        worker.register_mesh_from(DeviceMesh([[0, 1], [2, 3]], ("dp", "tp")), shard="cp")
    with pytest.raises(ValueError, match="rank 1 is not in it"):
        worker.register_mesh_from(DeviceMesh([0, 2], ("dp",)))


def test_log_says_where_it_comes_from(rank: RankInfo, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Worker().log.info("step %d", 3, extra={"step": 3})
    record = caplog.records[0]
    assert record.getMessage() == "[run- rank 1/4] step 3"
    assert record.name == "fanfold.worker.worker.Worker"
    assert (record.__dict__["group"], record.__dict__["rank"], record.__dict__["step"]) == ("run-", 1, 3)


class Loud(Worker):
    def on_start(self) -> None:
        self.log.warning("here")


def test_log_of_a_group(caplog: pytest.LogCaptureFixture) -> None:
    with WorkerGroup([2], Loud, name_prefix="run-"):
        assert caplog.messages == ["[run- rank 0/2] here", "[run- rank 1/2] here"]
