"""One Ray cluster for all integration tests, started the way users start one."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import SCRATCH, environment, free_port, prepare_environment

START_LIMIT = 120.0  # seconds until `ray start` says it is up, on a busy machine

prepare_environment()


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Start a cluster as `ray start --head` does on a machine of two cores, and end it, and only it."""
    port, log = free_port(), SCRATCH / "ray.log"
    options = [f"--port={port}", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={SCRATCH}"]
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    with log.open("w") as output:
        head = subprocess.Popen([*command, *options], stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _wait_for_start(head, log)
        yield f"127.0.0.1:{port}"
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(60)


def _wait_for_start(head: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + START_LIMIT
    while "Ray runtime started" not in log.read_text(encoding="utf-8"):
        if head.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"the cluster did not start: {log.read_text(encoding='utf-8')[-2000:]}")
        time.sleep(0.2)


@pytest.fixture
def on_cluster(ray_address: str) -> dict[str, str]:
    """Return the environment in which the scripts find that cluster."""
    return environment(RAY_ADDRESS=ray_address)


def pytest_sessionfinish() -> None:
    """Remove what the tests wrote."""
    shutil.rmtree(SCRATCH, ignore_errors=True)
