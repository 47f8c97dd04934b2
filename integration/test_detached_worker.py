"""The example as users run it: server in and out, client after it, everything gone at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from running import EXAMPLE, environment, run_script

pytestmark = pytest.mark.timeout(400)


def processes_with(text: str) -> list[str]:
    return [
        " ".join(p.info["cmdline"] or [])
        for p in psutil.process_iter(["cmdline"])
        if text in " ".join(p.info["cmdline"] or [])
    ]


@pytest.fixture
def short_path() -> Iterator[Path]:
    # pytest's own folders are too deep for Ray's sockets
    with tempfile.TemporaryDirectory(prefix="ff-", dir="/tmp") as folder:
        yield Path(folder)


def test_run_sh_trains_and_leaves_nothing(short_path: Path) -> None:
    env = environment(TMPDIR=str(short_path))
    done = run_script("run.sh", "--json", str(short_path / "result.json"), env=env)
    assert done.status == 0, done.err
    result = json.loads(done.out.splitlines()[-1])
    assert json.loads((short_path / "result.json").read_text()) == result
    assert result["steps"] == 60
    assert result["ranks"] == 2
    assert result["layout"] == "tensor=2"
    assert "cpu" in result["device"] or "cuda" in result["device"]
    assert result["server_exited_before_client"] is True
    assert 5.2 < result["first_loss"] < 5.9  # ln 256 = 5.545
    assert result["last_loss"] < 3.0
    assert set(result["seconds"]) == {"cluster", "server", "attach", "train"}
    assert processes_with(str(short_path)) == []
    assert [path.name for path in short_path.iterdir()] == ["result.json"]


def test_interrupt_in_the_middle_leaves_nothing(short_path: Path) -> None:
    with (short_path / "err").open("w") as errors:
        running = subprocess.Popen(
            ["env", "--default-signal=INT", "bash", str(EXAMPLE / "run.sh"), "--steps", "100000", "--tp", "1"],
            env=environment(TMPDIR=str(short_path)),
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    limit = time.monotonic() + 200
    while "trainer" not in (short_path / "err").read_text() and time.monotonic() < limit and running.poll() is None:
        time.sleep(0.5)
    os.killpg(running.pid, signal.SIGINT)
    out, _ = running.communicate(timeout=120)
    assert running.returncode == 130, (short_path / "err").read_text()
    assert out == b""
    assert "Traceback" not in (short_path / "err").read_text()
    assert processes_with(str(short_path)) == []
    assert [path.name for path in short_path.iterdir()] == ["err"]


def test_by_hand_on_a_running_cluster(on_cluster: dict[str, str]) -> None:
    served = run_script("server.py", "--name", "trainer", env=on_cluster)
    assert served.status == 0, served.err
    assert served.out.split() == ["trainerTrainer_0:0", "trainerTrainer_0:1"]

    again = run_script("server.py", "--name", "trainer", env=on_cluster)
    assert again.status == 1
    assert "trainer" in again.err
    assert "--replace" in again.err
    assert "Traceback" not in again.err

    first = run_script("client.py", "--name", "trainer", "--steps", "3", env=on_cluster)
    assert first.status == 0, first.err
    second = run_script("client.py", "--name", "trainer", "--steps", "3", env=on_cluster)
    assert second.status == 0, second.err
    losses = [json.loads(done.out.splitlines()[-1])["first_loss"] for done in (first, second)]
    assert losses[1] < losses[0]  # the same batch again, after the first client's three steps

    replaced = run_script("server.py", "--name", "trainer", "--replace", "--tp", "1", env=on_cluster)
    assert replaced.status == 0, replaced.err
    assert replaced.out.split() == ["trainerTrainer_0:0"]
    for _ in range(2):
        stopped = run_script("server.py", "--name", "trainer", "--stop", env=on_cluster)
        assert stopped.status == 0, stopped.err
    gone = run_script("client.py", "--name", "trainer", env=on_cluster)
    assert gone.status == 1
