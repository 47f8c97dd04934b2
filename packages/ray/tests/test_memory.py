from __future__ import annotations

import os
import subprocess
import sys

import pytest
import ray
from fanfold.ray import StoreFullError
from fanfold.ray.answers import RankAnswer
from fanfold.ray.memory import memory_note, memory_that_ran_out
from fanfold.ray.obituary import reason_of
from fanfold.ray.parcels import placed
from fanfold.worker import NotPicklableError
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, OutOfMemoryError


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), "host"),
        (OutOfMemoryError("1 worker(s) were killed due to the node running low on memory"), "host"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "host"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "GPU"),
        (RuntimeError("CUDA error: out of memory"), "GPU"),
        (ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 3 bytes"), "GPU"),
        (ObjectStoreFullError("full"), "object store"),
        (OutOfDiskError("full"), "object store"),
        (ValueError("out of range"), None),
    ],
)
def test_which_memory_ran_out(error: Exception, memory: str | None) -> None:
    assert memory_that_ran_out(error) == memory


def test_torchs_own_class_is_known_by_its_name() -> None:
    torch = pytest.importorskip("torch")
    assert memory_that_ran_out(torch.OutOfMemoryError("of some device")) == "GPU"


def test_the_report_says_whose_memory_it_was() -> None:
    answer = RankAnswer("xA_0:1", 708, "id", "10.0.0.1", ("3",), None, None, None)
    assert memory_note(RuntimeError("CUDA out of memory."), answer) == (
        "out of memory: that of the GPU 3 of node 10.0.0.1"
    )
    assert memory_note(MemoryError(), answer) == "out of memory: that of the host of node 10.0.0.1"
    assert memory_note(MemoryError(), None) == "out of memory: that of the host"
    assert memory_note(KeyError(1), answer) == ""


@pytest.mark.parametrize(
    "said",
    [
        (
            "1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.1, ID: a1) "
            "was 4.69GB used / 23.54GB limit (0.199299)\nOOM kill reason: and so on"
        ),
        (
            "Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.1, ID: a1) where "
            "the task (task ID: 1, name=A.f) was running was 4.69GB / 23.54GB (0.199), which exceeds the threshold"
        ),
    ],
)
def test_rays_memory_monitor_in_few_words(said: str) -> None:
    assert reason_of(said) == (
        (
            "Ray killed it because its node ran out of memory (4.69GB of 23.54GB were in use; the memory of the host, "
            "not of a GPU)"
        ),
        None,
    )


def test_a_full_store_is_not_taken_for_a_value_that_cannot_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise ObjectStoreFullError("needs 8 bytes")

    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(StoreFullError, match=r"an argument has no room in this node's object store.*needs 8 bytes"):
        placed(bytearray(100_000), "an argument")
    assert issubclass(StoreFullError, MemoryError)
    assert not issubclass(StoreFullError, NotPicklableError)


ON_A_NODE_WITHOUT_MEMORY = """
import logging, ray
from fanfold.ray import RayWorkerGroup
from sample_workers import Plain

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
try:
    group = RayWorkerGroup([1], Plain, name_prefix="m")
    group.fail_on(-1, "none", others_sleep=60.0)
except Exception as error:
    print("said", type(error).__mro__[0].__name__, error)
"""


def test_a_rank_that_ray_killed_for_memory_is_told_in_one_line() -> None:
    environment = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "200"}
    command = [sys.executable, "-c", ON_A_NODE_WITHOUT_MEMORY]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=170, check=False, env={**os.environ, **environment}
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("said")]
    assert said, done.stderr
    assert "Ray killed it because its node ran out of memory" in done.stdout
    assert "OOM kill reason" not in done.stdout
