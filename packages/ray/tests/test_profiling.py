from __future__ import annotations

import json
import pstats
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fanfold.ray import RayResourcePool, RayWorkerGroup
from fanfold.ray.profiling import Profiles, ProfileWindow, nsight_environment
from fanfold.worker import GroupUsageError, WorkerStartError
from sample_workers import Asynchronous, Plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ray.cluster_utils import Cluster


@pytest.fixture
def pair(cluster: Cluster) -> Iterator[RayResourcePool]:
    with RayResourcePool([1, 1], cpus_per_process=0.5) as pool:
        yield pool


def test_nsights_options_are_filled_up_and_not_changed() -> None:
    given = {"trace": "cuda,nvtx"}
    assert nsight_environment([3, 4], given) == {
        "nsight": {"trace": "cuda,nvtx", "capture-range-end": "repeat-shutdown:12"}
    }
    assert given == {"trace": "cuda,nvtx"}
    own = {"capture-range-end": "none"}
    assert nsight_environment([], own) == {"nsight": own}
    assert nsight_environment(None, own) == {}
    with pytest.raises(GroupUsageError, match=r"profile_steps=\[3\] needs worker_nsight_options"):
        nsight_environment([3], None)


def test_a_window_opens_and_closes_by_the_number_of_calls(tmp_path: Path) -> None:
    profiles = Profiles(2)
    window = ProfileWindow("add", str(tmp_path), skip=1, calls=2, kind="python")
    files = [str(tmp_path / f"add-call{number}-rank2.pstats") for number in (1, 2)]
    assert profiles.open(window) == files
    for number in range(5):
        with profiles.around("other"), profiles.around("add"):
            sum(range(number))
    assert sorted(map(str, tmp_path.iterdir())) == files
    assert profiles.around("add") is profiles.around("anything")


def test_a_method_that_fails_is_profiled_too(tmp_path: Path) -> None:
    profiles = Profiles(0)
    (file,) = profiles.open(ProfileWindow("add", str(tmp_path), kind="python"))
    with pytest.raises(KeyError), profiles.around("add"):
        raise KeyError
    assert Path(file).exists()


def test_what_makes_no_window_is_refused() -> None:
    for wrong in ({"kind": "nvidia"}, {"skip": -1}, {"calls": 0}, {"kind": "python", "options": {"a": 1}}):
        with pytest.raises(GroupUsageError):
            ProfileWindow("add", ".", **wrong)


def test_calls_of_one_method_are_profiled_where_they_run(pair: RayResourcePool, tmp_path: Path) -> None:
    with RayWorkerGroup(pair, Plain) as group:
        files = group.profile_calls("add", str(tmp_path / "new"), skip=1, ranks=[1], kind="python")
        assert files == [str(tmp_path / "new" / "add-call1-rank1.pstats")]
        assert [group.add(1), group.add(1), group.add(1)] == [[1, 1], [2, 2], [3, 3]]
        group.lead()
        assert [str(path) for path in (tmp_path / "new").iterdir()] == files
        assert any(function == "add" for _, _, function in pstats.Stats(files[0]).stats)  # type: ignore[attr-defined]
        with pytest.raises(GroupUsageError, match="Plain has no such method"):
            group.profile_calls("absent", str(tmp_path))
        with pytest.raises(GroupUsageError, match="has no rank 2"):
            group.profile_calls("add", str(tmp_path), ranks=[2])


def test_torchs_profiler_writes_a_trace_for_people_to_look_at(cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with RayResourcePool([1], cpus_per_process=0.5) as pool, RayWorkerGroup(pool, Asynchronous) as group:
        (file,) = group.profile_calls("most", str(tmp_path), record_shapes=True)
        assert group.most() == [0]
        assert json.loads(Path(file).read_text())["traceEvents"]


def test_without_nsight_on_the_nodes_the_start_says_so(pair: RayResourcePool) -> None:
    with pytest.raises(WorkerStartError, match=r"(?i)nsight"):
        RayWorkerGroup(pair, Plain, profile_steps=[1], worker_nsight_options={"trace": "nvtx"}, start_timeout=60)
