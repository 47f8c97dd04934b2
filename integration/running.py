"""The scripts of the example, run as users run them, and the environment in which they find the tests' cluster."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

EXAMPLE = Path(__file__).parent / "detached_worker"
GRPO = Path(__file__).parent / "grpo"
SCRIPT_LIMIT = 300.0  # seconds for one script of the example
SCRATCH = Path(tempfile.mkdtemp(prefix="fanfold-it-"))


def prepare_environment() -> None:
    """Give this process, and all it starts, a token of its own: with an address, both sides have to name the mode.

    Has to run before anything imports ray, which reads the mode once.
    """
    (SCRATCH / "token").write_text(secrets.token_hex(32), encoding="ascii")
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(SCRATCH / "token"),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        # Ranks unpickle the examples' classes by import where a test imported them.
        PYTHONPATH=os.pathsep.join(filter(None, [str(EXAMPLE), str(GRPO), os.environ.get("PYTHONPATH", "")])),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    )
    os.environ.pop("RAY_ADDRESS", None)


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
    start = ["bash"] if name.endswith(".sh") else [sys.executable]
    return _run([*start, str(EXAMPLE / name), *arguments], env)


def run_program(program: str, *arguments: str, env: dict[str, str] | None = None) -> Finished:
    """Run a program of a test's own to its end."""
    return _run([sys.executable, "-c", program, *arguments], env)


def _run(command: list[str], env: dict[str, str] | None) -> Finished:
    done = subprocess.run(
        command,
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
