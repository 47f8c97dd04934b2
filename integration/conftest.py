"""One Ray cluster for all integration tests, started the way users start one; and the scripts of the example."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent / "detached_worker"
START_LIMIT = 120.0  # seconds until `ray start` says it is up, on a busy machine
SCRIPT_LIMIT = 300.0  # seconds for one script of the example

# A token of these tests' own, before anything imports ray: clusters found by address need the mode said on both sides.
_SCRATCH = Path(tempfile.mkdtemp(prefix="fanfold-it-"))
(_SCRATCH / "token").write_text(secrets.token_hex(32), encoding="ascii")
os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN_PATH=str(_SCRATCH / "token"),
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    PYTHONPATH=os.pathsep.join(filter(None, [str(EXAMPLE), os.environ.get("PYTHONPATH", "")])),
)
os.environ.pop("RAY_ADDRESS", None)
sys.path.insert(0, str(EXAMPLE))


@dataclass(frozen=True)
class Finished:
    """How a script ended."""

    status: int
    out: str
    err: str


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with some variables changed."""
    return {**os.environ, **changes}


def run_script(name: str, *arguments: str, env: dict[str, str] | None = None) -> Finished:
    """Run a script of the example to its end."""
    command = ["bash", str(EXAMPLE / name)] if name.endswith(".sh") else [sys.executable, str(EXAMPLE / name)]
    done = subprocess.run(
        [*command, *arguments],
        env=env or environment(),
        capture_output=True,
        text=True,
        timeout=SCRIPT_LIMIT,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Start a cluster as `ray start --head` does on a machine of two cores, and end it, and only it."""
    address = f"127.0.0.1:{free_port()}"
    log = _SCRATCH / "ray.log"
    with log.open("w") as output:
        head = subprocess.Popen(
            [shutil.which("ray") or "ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
            + [f"--port={address.split(':')[1]}", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={_SCRATCH}"],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for_start(head, log)
        yield address
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
    shutil.rmtree(_SCRATCH, ignore_errors=True)
