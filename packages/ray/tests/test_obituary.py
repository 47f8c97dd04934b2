from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from fanfold.ray.answers import RankAnswer
from fanfold.ray.logs import oom_kills, tail
from fanfold.ray.obituary import obituary, reason_of
from fanfold.worker import RankInfo

if TYPE_CHECKING:
    from pathlib import Path

DEAD = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tactor_id: e508\n\tpid: 708\n"
    "\tname: xA_0:1\n\tnamespace: n\n\tip: 192.0.2.2\nThe actor is dead because "
)


@pytest.mark.parametrize(
    ("said", "reason", "status"),
    [
        ("its worker process has died. Worker exit detail: Worker exits with an exit code 4.", "exit status 4", 4),
        (
            "its process has died. Worker exits with a connection error code 2. End of file.",
            "without a word",
            None,
        ),
        ("it was killed by `ray.kill`.", "it was killed by ray.kill", None),
        ("the node was running low on memory", "because its node ran out of memory", None),
        ("its placement group was removed", "its placement group was removed", None),
        ("its node has died.", "its node is gone", None),
        ("its owner has died.", "the driver that owned it has ended", None),
        ("all references to the actor were removed.", "nobody held a handle", None),
        (
            "of something new.",
            "The actor died unexpectedly before finishing this task. The actor is dead because of",
            None,
        ),
    ],
)
def test_reasons_in_few_words(said: str, reason: str, status: int | None) -> None:
    text, found = reason_of(DEAD + said)
    assert reason in text
    assert found == status
    assert "\n" not in text


def test_without_a_rank_rays_own_facts_are_used() -> None:
    error = obituary(RuntimeError(DEAD + "it was killed by `ray.kill`."), None)
    assert str(error) == "worker xA_0:1 (pid 708, node 192.0.2.2) is gone: it was killed by ray.kill"
    assert error.ranks == ()


def answer(log: Path) -> RankAnswer:
    info = RankInfo(rank=1, world_size=2, group="x", backend="ray")
    return RankAnswer("xA_0:1", 708, "id", "10.0.0.1", ("3",), info, None, None, (str(log),), oom_kills())


def test_with_a_rank_its_place_and_last_output_are_told(tmp_path: Path) -> None:
    log = tmp_path / "worker.out"
    log.write_text(":job_id:01\n:actor_name:A\n" + "\n".join(f"line {number}" for number in range(100)) + "\n\n")
    error = obituary(RuntimeError(DEAD + "Worker exits with an exit code 4."), answer(log))
    lines = str(error).splitlines()
    assert lines[0].startswith(
        "worker xA_0:1 (rank 1, pid 708, node 10.0.0.1, GPU 3) is gone: its process ended with exit"
    )
    assert lines[1:] == [f"  line {number}" for number in range(88, 100)]
    assert (error.exit_status, error.ranks) == (4, (1,))


def test_the_kernels_killer_is_named_where_it_was_at_work(tmp_path: Path) -> None:
    log = tmp_path / "worker.out"
    log.touch()
    silent = RuntimeError(DEAD + "connection error code 2. End of file.")
    assert "out-of-memory killer" not in str(obituary(silent, answer(log)))
    earlier = dataclasses.replace(answer(log), oom_kills=oom_kills() - 1)
    if earlier.oom_kills >= 0:
        assert "out-of-memory killer" in str(obituary(silent, earlier))


def test_only_the_end_of_a_file_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000 + b"\nlast \xff words\n")
    assert tail(str(log))[-1] == "last � words"
    assert tail(str(tmp_path / "absent")) == []
