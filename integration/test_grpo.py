"""The loop with real models: the same numbers wherever it runs, and the same curve after whatever ended it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from arguments import Arguments, parse, run
from distributed import models_on_ranks, stop
from fanfold.dataproto import DataProto
from fanfold.megatron import BatchError, PolicyGradient, Sampling
from fanfold.worker import OnlyRank
from journal import read_lines
from problems import ADDITIONS, padded
from running import GRPO, environment
from single import models_here
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from workers import Policy

pytestmark = pytest.mark.timeout(400)
STEPS = 5
SMALL = [
    *("--warm-up-steps", "25", "--prompts", "8", "--samples", "4", "--mini-batches", "2"),
    *("--checkpoint-every", "2", "--samples-every", "2", "--device", "cpu"),
]


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten problems: soon there is something to reward."""
    path = tmp_path_factory.mktemp("tasks") / "ten.jsonl"
    path.write_text("".join(ADDITIONS.read_text(encoding="utf-8").splitlines(keepends=True)[30:40]), encoding="utf-8")
    return path


def arguments(ten: Path, out: Path, *options: str) -> list[str]:
    return [*SMALL, "--warm-up-right", "1", "--tasks", str(ten), "--out", str(out), *options]


def chosen(ten: Path, out: Path, *options: str, steps: int = STEPS) -> Arguments:
    return parse("", groups=True, arguments=arguments(ten, out, "--steps", str(steps), *options))


def curve(out: Path) -> list[dict[str, Any]]:
    return read_lines(out / "metrics.jsonl")


def numbers(out: Path) -> list[list[float]]:
    return [[line["reward"], line["kl"], line["entropy"], *line["loss"], *line["gradient_norm"]] for line in curve(out)]


def single_run(ten: Path, out: Path, *options: str, steps: int = STEPS) -> dict[str, Any]:
    return run(models_here, chosen(ten, out, *options, steps=steps))


@pytest.fixture(scope="module")
def reference(ten: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the toy's run."""
    out = tmp_path_factory.mktemp("single") / "run"
    said = single_run(ten, out, "--tensorboard")
    assert said["steps"] == STEPS
    return out


def check_the_same(out: Path, reference: Path) -> None:
    made, wanted = numbers(out), numbers(reference)
    assert len(made) == len(wanted) == STEPS
    for one, other in zip(made, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert [line["reward"] for line in curve(out)] == [line["reward"] for line in curve(reference)]


def test_the_toy_says_all_there_is_to_know(reference: Path) -> None:
    lines = curve(reference)
    assert [line["step"] for line in lines] == list(range(STEPS))
    assert 0.05 < lines[0]["reward"] < 0.95  # something to learn from
    assert len({tuple(line["loss"]) for line in lines}) == STEPS
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert lines[-1]["kl"] > 1e-5
    assert all(set(line["seconds"]) == {"answers", "scores", "advantages", "learning"} for line in lines)
    events = EventAccumulator(str(reference / "tensorboard")).Reload()
    assert [entry.value for entry in events.Scalars("reward")] == pytest.approx([line["reward"] for line in lines])
    samples = read_lines(reference / "samples.jsonl")
    assert [sample["step"] for sample in samples] == [0] * 4 + [2] * 4 + [4] * 4
    for sample in samples:
        assert sample["reward"] == float(sample["response"] == sample["answer"])
        assert 1 <= len(sample["old_log_probs"]) == len(sample["advantages"]) <= 3
    assert json.loads((reference / "state.json").read_text())["checkpoints"] == {"actor": 25 + 2 * STEPS}


@pytest.mark.parametrize(
    "where",
    [
        ["--backend", "inline"],
        ["--backend", "inline", "--placement", "split"],
        ["--backend", "processes", "--tp", "2", "--judges", "2"],
        pytest.param(["--backend", "processes", "--placement", "split"], marks=pytest.mark.slow),
        pytest.param(["--backend", "processes", "--dp", "2"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_everywhere_on_this_machine_the_same(where: list[str], ten: Path, tmp_path: Path, reference: Path) -> None:
    run(models_on_ranks, chosen(ten, tmp_path / "run", *where))
    check_the_same(tmp_path / "run", reference)
    pids = json.loads((tmp_path / "run" / "workers.json").read_text())
    assert set(pids) == {"actor", "reference", "judge"}
    assert (os.getpid() in pids["actor"]) == ("inline" in where)
    assert (pids["actor"] == pids["reference"]) == ("split" not in where or "inline" in where)


@pytest.mark.parametrize(
    "where",
    [
        ["--placement", "colocated"],
        pytest.param(["--placement", "split"], marks=pytest.mark.slow),
        pytest.param(["--placement", "colocated", "--tp", "2"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_on_ray_the_same(where: list[str], ten: Path, tmp_path: Path, reference: Path, ray_address: str) -> None:
    run(models_on_ranks, chosen(ten, tmp_path / "run", "--backend", "ray", "--address", ray_address, *where))
    check_the_same(tmp_path / "run", reference)


@pytest.mark.slow
def test_models_stay_loaded_between_drivers(ten: Path, tmp_path: Path, reference: Path, ray_address: str) -> None:
    out, where = tmp_path / "run", ["--backend", "ray", "--address", ray_address, "--attach", "kept"]
    first = run(models_on_ranks, chosen(ten, out, *where, steps=2))
    pids = json.loads((out / "workers.json").read_text())
    second = run(models_on_ranks, chosen(ten, out, *where))
    assert (first["first_step"], second["first_step"]) == (0, 2)
    assert json.loads((out / "workers.json").read_text()) == pids
    assert second["seconds"]["start"] < first["seconds"]["start"]
    check_the_same(out, reference)
    stop(chosen(ten, out, *where))
    ray.shutdown()
    give_up = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for ranks in pids.values() for pid in ranks):
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_ppo_is_the_same_in_the_toy_and_on_groups(ten: Path, tmp_path: Path) -> None:
    single_run(ten, tmp_path / "toy", "--algorithm", "ppo")
    run(models_on_ranks, chosen(ten, tmp_path / "groups", "--algorithm", "ppo", "--backend", "inline"))
    check_the_same(tmp_path / "groups", tmp_path / "toy")
    critic = [line["critic_loss"] for line in curve(tmp_path / "toy")]
    assert critic == pytest.approx([line["critic_loss"] for line in curve(tmp_path / "groups")], abs=1e-4)
    assert critic[-1] < critic[0]
    assert set(json.loads((tmp_path / "toy" / "state.json").read_text())["checkpoints"]) == {"actor", "critic"}


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_run_in_two_halves_is_the_same(algorithm: str, ten: Path, tmp_path: Path, reference: Path) -> None:
    whole = reference
    if algorithm == "ppo":
        whole = tmp_path / "whole"
        single_run(ten, whole, "--algorithm", "ppo")
    out = tmp_path / "halves"
    single_run(ten, out, "--algorithm", algorithm, steps=2)
    said = single_run(ten, out, "--algorithm", algorithm, "--resume")
    assert said["first_step"] == 2
    assert numbers(out) == numbers(whole)  # to the last bit


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_defaults_learn(seed: int, tmp_path: Path) -> None:
    options = ["--seed", str(seed), "--device", "cpu", "--out", str(tmp_path / "run")]
    said = run(models_on_ranks, parse("", groups=True, arguments=options))
    assert said["first_reward"] < 0.6
    assert said["last_reward"] > 0.9


# What may happen in the middle.


@pytest.fixture
def running(ten: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run without end, in its third step or beyond."""
    out = tmp_path / "run"
    options = arguments(ten, out, "--steps", "100000", "--backend", "processes")
    driver = subprocess.Popen(
        [sys.executable, str(GRPO / "distributed.py"), *options],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    give_up = time.monotonic() + 200
    while not ((out / "metrics.jsonl").is_file() and len(curve(out)) > 2):
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < give_up
        time.sleep(0.1)
    yield driver
    if driver.poll() is None:
        driver.kill()
    driver.communicate()


def ended(driver: subprocess.Popen[str]) -> str:
    _, said = driver.communicate(timeout=120)
    assert driver.returncode == 1, said
    assert "Traceback" not in said
    return said[said.index("error: ") :]


def check_it_goes_on(ten: Path, out: Path, reference: Path) -> None:
    done = json.loads((out / "state.json").read_text())["steps"]
    steps = max(done, STEPS)
    said = single_run(ten, out, "--resume", steps=steps + 1)  # the checkpoint knows no backend
    assert said["first_step"] == done
    assert [line["step"] for line in curve(out)] == list(range(steps + 1))
    for one, other in zip(numbers(out), numbers(reference), strict=False):
        assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["actor", "judge"])
def test_a_rank_is_killed(
    role: str, running: subprocess.Popen[str], ten: Path, tmp_path: Path, reference: Path
) -> None:
    out = tmp_path / "run"
    os.kill(json.loads((out / "workers.json").read_text())[role][0], signal.SIGKILL)
    said = ended(running)
    assert "rank 0" in said
    assert "SIGKILL" in said or "killed" in said or "signal 9" in said
    assert f"--resume goes on from the last checkpoint in {out}" in said
    check_it_goes_on(ten, out, reference)


@pytest.mark.slow
def test_the_driver_is_killed(running: subprocess.Popen[str], ten: Path, tmp_path: Path, reference: Path) -> None:
    out = tmp_path / "run"
    pids = [pid for ranks in json.loads((out / "workers.json").read_text()).values() for pid in ranks]
    running.kill()
    running.communicate(timeout=60)
    give_up = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < give_up, "ranks outlived their driver"
        time.sleep(0.1)
    check_it_goes_on(ten, out, reference)


# Bad input that needs a model to be bad.


@pytest.fixture
def policy(ten: Path, tmp_path: Path) -> Iterator[Policy]:
    with OnlyRank(), closing(Policy(**chosen(ten, tmp_path).recipe("actor"))) as made:
        made.init_model()
        yield made


def test_a_prompt_that_is_longer_than_the_model_is_named(policy: Policy) -> None:
    prompts = DataProto.from_dict(tensors=padded([b"1+1=", b"1" * 30]))
    with pytest.raises(
        BatchError, match="row 1 of this rank's 2 has 30 tokens, more than the model's max_sequence_len"
    ):
        policy.answer(prompts, Sampling(max_new_tokens=3))


def with_columns(rows: DataProto, mask: torch.Tensor) -> DataProto:
    zeros = torch.zeros(rows["input_ids"].shape)
    columns = {"loss_mask": mask, "old_log_probs": zeros, "advantages": zeros, "ref_log_probs": zeros}
    return rows | DataProto.from_dict(tensors=columns)


def test_empty_answers_and_equal_rewards_change_nothing(policy: Policy) -> None:
    rows = DataProto.from_dict(tensors=padded([b"1+1=2\n", b"1+1="]))
    mask = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]])
    before = policy.state_digest()
    metrics = policy.learn(with_columns(rows, mask), PolicyGradient()).meta_info["metrics"]
    assert metrics["tokens"] == 2
    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert policy.state_digest() == before
    with pytest.raises(BatchError, match="has nothing to predict"):
        policy.learn(with_columns(rows, torch.zeros_like(mask)), PolicyGradient())


def test_a_failing_reward_ends_the_run_and_keeps_the_batch(ten: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from dataclasses import replace; from arguments import parse, report;"
        "from distributed import models_on_ranks;"
        "sys.exit(report(models_on_ranks, replace(parse('', groups=True, arguments=sys.argv[1:]), reward=str.index)))"
    )
    out = tmp_path / "run"
    command = [sys.executable, "-c", script, *arguments(ten, out, "--backend", "inline")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error: the reward function failed on sample " in done.stderr
    assert f"ValueError: substring not found. The batch is kept in {out / 'failed.safetensors'}" in done.stderr
    assert len(DataProto.load(out / "failed.safetensors")) == 32
