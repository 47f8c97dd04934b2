"""Drivers whose parent is `uv run`: a process of that name and argument, as Ray looks for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from drivers import START
from ray._private import ray_constants

if TYPE_CHECKING:
    from pathlib import Path

    from ray.cluster_utils import Cluster

pytestmark = pytest.mark.skipif(
    not hasattr(ray_constants, "RAY_ENABLE_UV_RUN_RUNTIME_ENV"), reason="this Ray does not look for `uv run`"
)

BY_CONNECT = """
import json, os, ray
from fanfold.ray import RayResourcePool, RayWorkerGroup, connect
from sample_workers import Plain
connect({address!r})
with RayResourcePool([1], cpus_per_process=0.5) as pool, RayWorkerGroup(pool, Plain) as group:
    print("said " + json.dumps([group.add(1), ray.get_runtime_context().runtime_env.get("py_executable")]))
"""

BY_RAY = """
try:
    with RayResourcePool([1], cpus_per_process=0.5) as pool:
        RayWorkerGroup(pool, Plain, start_timeout=4)
except Exception as error:
    say([type(error).__name__, str(error)])
"""


def run_under_uv(folder: Path, body: str, **environment: str) -> tuple[list[Any], str]:
    (folder / "driver.py").write_text(body)
    (folder / "run").write_text(f"{sys.executable} driver.py\nexit $?\n")  # two commands: the shell stays the parent
    done = subprocess.run(
        ["bash", "-c", "exec -a uv bash run"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "RAY_ENABLE_UV_RUN_RUNTIME_ENV"} | environment,
    )
    said = [json.loads(line.removeprefix("said ")) for line in done.stdout.splitlines() if line.startswith("said ")]
    assert said, done.stderr
    return said, done.stderr


def test_after_connect_workers_are_started_by_their_own_python(cluster: Cluster, address: str, tmp_path: Path) -> None:
    said, warnings = run_under_uv(tmp_path, BY_CONNECT.format(address=address))
    assert said == [[[1], None]]
    assert "uv run" not in warnings


def test_who_asks_for_it_keeps_it(cluster: Cluster, address: str, tmp_path: Path) -> None:
    body = f"""
import json, ray
from fanfold.ray import connect
connect({address!r})
print("said " + json.dumps(ray.get_runtime_context().runtime_env.get("py_executable")))
"""
    said, _ = run_under_uv(tmp_path, body, RAY_ENABLE_UV_RUN_RUNTIME_ENV="1")
    assert said[0].startswith("uv run ")


def test_without_connect_it_is_said_before_and_after_the_wait(cluster: Cluster, address: str, tmp_path: Path) -> None:
    said, warnings = run_under_uv(tmp_path, START.format(address=address, namespace="fanfold") + BY_RAY)
    assert "this driver runs under `uv run`, so Ray starts every worker by `uv run" in warnings
    assert said[0][0] in {"WaitTimeoutError", "WorkerStartError"}
    assert "fanfold.ray.connect()" in said[0][1]
