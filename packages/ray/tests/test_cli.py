from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import ray
from fanfold.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, cli, command, doctor, stop_group
from fanfold.ray.cluster import node_states
from fanfold.ray.names import named_actors
from sample_workers import Plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ray.cluster_utils import Cluster


@pytest.fixture(scope="module")
def trainer(two_nodes: Cluster) -> Iterator[RayWorkerGroup]:
    pool = RayResourcePool([1, 1], cpus_per_process=0.5, detached=True)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Plain, 5), name_prefix="[trainer]", detached=True)
    group.register_meshes()
    group.mesh("halves")
    yield group
    stop_group("[trainer]")


class Shell:
    """Runs commands in this process, which is connected already."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        self._capsys.readouterr()
        status = command.main(arguments)
        self.out, self.err = self._capsys.readouterr()
        return status

    def data(self, *arguments: str) -> Any:
        self(*arguments, "--json")
        return json.loads(self.out)


@pytest.fixture
def fanfold(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(cli, "connect", lambda _address, _namespace: None)
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(capsys)


def test_ls(fanfold: Shell, trainer: RayWorkerGroup) -> None:
    assert fanfold("ls") == 0
    head, row = fanfold.out.splitlines()
    assert head.split() == ["group", "namespace", "ranks", "state", "age", "last", "client"]
    assert row.split()[:4] == ["[trainer]", "fanfold", "2", "ready"]
    (group,) = fanfold.data("ls")
    assert (group["group"], group["state"], group["worker_names"]) == ("[trainer]", "ready", trainer.worker_names)


def test_describe(fanfold: Shell, trainer: RayWorkerGroup) -> None:
    assert fanfold("describe", "[trainer]") == 0
    lines = fanfold.out.splitlines()
    assert lines[0].startswith("[trainer] in 'fanfold': ready, sample_workers.Plain, ")
    places = trainer.placement()
    assert lines[2].split()[:3] == ["0", trainer.worker_names[0], places[0].address]
    assert lines[2].split()[3:] == ["-", str(places[0].pid), "halves", "dp=0,replica=0"]
    assert "fail_on" in fanfold.out
    assert "ONE_TO_ALL" in fanfold.out
    data = fanfold.data("describe", "[trainer]")
    assert data["class"] == "sample_workers.Plain"
    assert [rank["pid"] for rank in data["ranks"]] == [place.pid for place in places]
    coordinates = [rank["coordinates"]["halves"] for rank in data["ranks"]]
    assert coordinates == [{"dp": 0, "replica": 0}, {"dp": 0, "replica": 1}]
    assert data["methods"]["fail_on"] == "ONE_TO_ALL"


def test_logs(fanfold: Shell, trainer: RayWorkerGroup) -> None:
    trainer.execute(_print_lines)
    assert fanfold("logs", "[trainer]", "--lines", "2") == 0
    assert fanfold.out.splitlines() == [f"   {rank} | line {number} of {rank}" for rank in (0, 1) for number in (3, 4)]
    assert fanfold("logs", "[trainer]", "--rank", "1", "--lines", "1") == 0
    assert fanfold.out.splitlines() == ["   1 | line 4 of 1"]
    assert fanfold("logs", "[trainer]", "--rank", "7") == 1
    assert "ranks 0 to 1; there is no rank 7" in fanfold.err


def _print_lines(worker: Plain) -> None:
    for number in range(5):
        print(f"line {number} of {worker.rank}", flush=True)  # noqa: T201


def test_logs_are_followed(fanfold: Shell, trainer: RayWorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter(range(100))

    def pause(_seconds: float) -> None:
        look = next(looks)
        if look == 0:
            trainer.execute(_print_lines)
        if look == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("fanfold.ray.cli.time.sleep", pause)
    assert fanfold("logs", "[trainer]", "--rank", "0", "-f", "--lines", "1") == 130
    assert fanfold.out.splitlines()[1:] == [f"   0 | line {number} of 0" for number in range(5)]


def test_why_stuck_looks_into_a_running_method(fanfold: Shell, trainer: RayWorkerGroup) -> None:
    call = trainer.later(3.0)
    end = time.monotonic() + 60
    while "time.sleep(seconds)" not in (statuses := fanfold.data("why-stuck", "[trainer]"))[0]["stack"]:
        assert time.monotonic() < end
        call = trainer.later(3.0) if call.done() else call
    assert statuses[0]["method"] == "later"
    assert fanfold("why-stuck", "[trainer]") == 0
    assert trainer.worker_names[1] in fanfold.out
    call.result()


def test_doctor_finds_nothing_bad_in_a_good_cluster(fanfold: Shell, trainer: RayWorkerGroup) -> None:
    status = fanfold("doctor")
    findings = {finding["check"]: finding for finding in reversed(fanfold.data("doctor"))}
    assert status == 0, fanfold.out
    # Of what other tests ended there may be a second word: nodes that were here and are gone.
    assert findings["nodes"]["text"].startswith("2 alive")
    assert findings["versions"]["verdict"] == findings["processes"]["verdict"] == "good"
    assert f"ray {ray.__version__}" in findings["versions"]["text"]
    assert findings["groups"]["text"] == "group '[trainer]' in 'fanfold' is ready, 2 ranks"
    assert findings["placement groups"]["verdict"] == "good"


def test_doctor_compares_versions(two_nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = doctor.own_versions()
    monkeypatch.setattr(doctor, "own_versions", lambda: {**ours, "ray": "0.0"})
    nodes = node_states()
    (finding,) = doctor._versions(nodes, doctor._ask_nodes(nodes))
    assert finding.verdict == "bad"
    assert f"ray is {ours['ray']} on {nodes[0].address}, 0.0 here" in finding.text


def test_doctor_says_where_every_rank_compiles_anew(two_nodes: Cluster) -> None:
    nodes = node_states()
    reports = doctor._ask_nodes(nodes)
    one = reports[nodes[1].node_id]
    assert one is not None
    kept = {node.node_id: replace(one, bytecode=True) for node in nodes}
    assert doctor._bytecode(nodes, kept)[0].verdict == "good"
    (finding,) = doctor._bytecode(nodes, {**kept, nodes[1].node_id: replace(one, bytecode=False)})
    assert finding.verdict == "warning"
    assert f"not kept on {nodes[1].address}: every rank compiles" in finding.text
    assert "unset PYTHONDONTWRITEBYTECODE" in finding.text


@pytest.mark.parametrize("switch", [{}, {"PYTHONDONTWRITEBYTECODE": "1"}])
def test_a_process_knows_whether_bytecode_is_kept(switch: dict[str, str], tmp_path: Path) -> None:
    program = "from fanfold.ray.doctor import look_at_this_node; print(look_at_this_node().bytecode)"
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**bare, "PYTHONPYCACHEPREFIX": str(tmp_path), **switch},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(not switch)]


def test_a_lost_rank_is_seen_everywhere_and_stop_ends_the_rest(fanfold: Shell, two_nodes: Cluster) -> None:
    pool = RayResourcePool([2], cpus_per_process=0.5, detached=True)
    group = RayWorkerGroup(pool, Plain, name_prefix="broken", detached=True)
    ray.kill(group.workers[1])
    end = time.monotonic() + 30
    while ("fanfold", "brokenPlain_0:1") in named_actors():
        assert time.monotonic() < end
    assert [row["state"] for row in fanfold.data("ls") if row["group"] == "broken"] == ["broken"]
    assert fanfold("describe", "broken") == 1
    assert "gone" in fanfold.out
    assert fanfold("doctor") == 1
    assert "has lost brokenPlain_0:1; `fanfold stop broken` ends the rest" in fanfold.out
    assert fanfold.data("why-stuck", "broken")[1]["note"] == "is gone"
    assert fanfold("stop", "broken") == 0
    assert fanfold.out == "broken has ended\n"
    assert fanfold("stop", "broken") == 0
    assert fanfold.data("stop", "broken") == {"group": "broken", "stopped": False}


def test_wrong_use_is_status_two(fanfold: Shell) -> None:
    assert fanfold("frobnicate") == 2
    assert fanfold("describe") == 2
    assert fanfold("logs", "x", "--rank", "many") == 2


def test_what_is_not_there_is_status_one(fanfold: Shell, two_nodes: Cluster) -> None:
    for name in ("describe", "logs", "why-stuck"):
        assert fanfold(name, "absent") == 1
        assert fanfold.err.startswith("error: no group 'absent' lives in namespace 'fanfold'")


def test_without_the_extra_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.import_module

    def absent(name: str) -> Any:
        if name == "cyclopts":
            raise ModuleNotFoundError(name)
        return real(name)

    monkeypatch.setattr("fanfold.ray.command.importlib.import_module", absent)
    assert command.main(["ls"]) == 2
    assert capsys.readouterr().err == "fanfold needs cyclopts: pip install 'fanfold-ray[cli]'\n"


def test_as_a_process_of_its_own(address: str) -> None:
    fanfold = [sys.executable, "-m", "fanfold.ray", "ls", "--json", "--address"]
    done = subprocess.run([*fanfold, address], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, []) or "[trainer]" in done.stdout, done.stderr
    lost = subprocess.run([*fanfold, "127.0.0.1:1"], capture_output=True, text=True, timeout=120, check=False)
    assert (lost.returncode, lost.stdout) == (1, "")
    assert lost.stderr.startswith("error: nothing answers at 127.0.0.1:1")
    assert "Traceback" not in lost.stderr
