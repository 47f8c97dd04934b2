"""Wrong use gets a few lines that say what was expected and what to do: no stack trace, nothing left running."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import ray
from running import Finished, environment, free_port, run_program, run_script

pytestmark = pytest.mark.timeout(400)


def check_refused(done: Finished, status: int, *words: str) -> None:
    assert done.status == status, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    lines = [line for line in done.err.splitlines() if "error:" in line]
    assert len(lines) == 1, done.err
    message = done.err[done.err.index("error:") :]
    assert len(message.splitlines()) <= 8, message
    for word in words:
        assert word in message, message


@pytest.fixture(scope="module")
def group(ray_address: str) -> Iterator[dict[str, str]]:
    env = environment(RAY_ADDRESS=ray_address)
    served = run_script("server.py", "--name", "held", "--tp", "2", env=env)
    assert served.status == 0, served.err
    yield env
    assert run_script("server.py", "--name", "held", "--stop", env=env).status == 0


def test_no_cluster() -> None:
    # Ray finds every cluster of this machine by its processes; the tests' own starts after this, the first test.
    if any(process.info["name"] == "gcs_server" for process in psutil.process_iter(["name"])):
        pytest.skip("another Ray cluster runs on this machine, and would be found")
    check_refused(run_script("client.py"), 1, "no Ray cluster runs on this machine", "ray start --head")


def test_wrong_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    check_refused(run_script("client.py", "--address", address), 1, address, "ray start --head")
    check_refused(run_script("client.py", "--address", "nowhere"), 1, "nowhere", "host:port")


def test_server_not_started(on_cluster: dict[str, str]) -> None:
    check_refused(run_script("client.py", "--name", "nobody", env=on_cluster), 1, "nobody", "fanfold")


UNBUILDABLE = """
import sys
import server
from fanfold.dispatch import Dispatch, register

class Unbuildable(server.Trainer):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        raise MemoryError("no memory for this model")

server.Trainer = Unbuildable
sys.exit(server.main())
"""


# Before the first test with a group: that one takes all the CPUs there are.
def test_a_model_that_cannot_be_built_leaves_no_workers(on_cluster: dict[str, str]) -> None:
    served = run_program(UNBUILDABLE, "--name", "unbuilt", "--tp", "1", env=on_cluster)
    assert served.status == 1, served.err
    assert "no memory for this model" in served.err
    check_refused(run_script("client.py", "--name", "unbuilt", env=on_cluster), 1, "no group 'unbuilt'")


def test_wrong_namespace(group: dict[str, str]) -> None:
    done = run_script("client.py", "--name", "held", "--namespace", "elsewhere", env=group)
    check_refused(done, 1, "held", "elsewhere", "'fanfold'")


def test_missing_and_short_text(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("too short")
    check_refused(run_script("client.py", "--text", str(tmp_path / "absent")), 2, "absent")
    check_refused(run_script("run.sh", "--text", str(short)), 2, "9 bytes", "2048")


@pytest.mark.parametrize("script", ["server.py", "run.sh"])
def test_layout_that_cannot_be(script: str, on_cluster: dict[str, str]) -> None:
    check_refused(run_script(script, "--tp", "3", env=on_cluster), 2, "tensor=3", "num_attention_heads=4")


def test_unknown_option(on_cluster: dict[str, str]) -> None:
    check_refused(run_script("run.sh", "--stepps", "3", env=on_cluster), 2, "--stepps")


def test_gpu_wanted_where_there_is_none(on_cluster: dict[str, str]) -> None:
    check_refused(run_script("server.py", "--name", "greedy", "--device", "cuda", env=on_cluster), 1, "GPU")


def test_port_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        check_refused(run_script("run.sh", env=environment(RAY_PORT=port)), 1, f"RAY_PORT={port}", "taken")


def test_ranks_that_died(group: dict[str, str], ray_address: str) -> None:
    with ray.init(ray_address, namespace="fanfold", log_to_driver=False):
        ray.kill(ray.get_actor("heldTrainer_0:1"))
    check_refused(run_script("client.py", "--name", "held", env=group), 1, "heldTrainer_0:1", "--replace")
