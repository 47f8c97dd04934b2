"""The parts of the loop that need no model: advantages, problems, verdicts, the folder of a run."""

from __future__ import annotations

import inspect
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import arguments
import distributed
import loop
import plot
import pytest
import single
import torch
from advantages import generalised_advantages, group_advantages, over_tokens, whitened
from arguments import parse
from board import BoardError, require_tensorboard, scalars, tensorboard
from fanfold.dataproto import DataProto
from fanfold.worker import GroupCallError, WorkerGroup
from journal import Journal, ResumeError, read_lines
from problems import ADDITIONS, Problem, TaskFileError, examples_of_step, prompts_of_step, read_problems
from running import GRPO, environment
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from workers import Judge, RewardError, merged_metrics

ROOM = 29


def test_a_group_compares_its_answers() -> None:
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 1.0, 2.0, 6.0]), torch.tensor([0, 0, 0, 0, 7, 7])
    assert group_advantages(rewards, groups).tolist() == [1.0, -1.0, -1.0, 1.0, -1.0, 1.0]


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1e-30, -3.3])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_equal_rewards_are_no_advantage(reward: float, size: int) -> None:
    rewards, groups = torch.full((2 * size,), reward), torch.arange(2).repeat_interleave(size)
    assert group_advantages(rewards, groups).tolist() == [0.0] * (2 * size)


def test_groups_need_not_lie_together() -> None:
    assert group_advantages(torch.tensor([0.0, 5.0, 1.0, 5.0]), torch.tensor([3, 1, 3, 1])).tolist() == [-1, 0, 1, 0]


def test_advantages_go_to_the_tokens_of_the_response() -> None:
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0]])
    assert over_tokens(torch.tensor([2.0, 3.0]), mask).tolist() == [[0, 2, 2, 0], [0, 0, 0, 0]]


def test_generalised_advantages_are_the_definition() -> None:
    mask = torch.tensor([[0, 1, 1, 1, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    values = torch.tensor([[9.0, 0.5, 0.25, 0.75, 9.0], [9.0, 9.0, 9.0, 0.2, 0.4], [9.0, 9.0, 9.0, 9.0, 9.0]])
    rewards = torch.tensor([1.0, 2.0, 5.0])
    advantages, returns = generalised_advantages(rewards, values, mask, discount=0.9, trace=0.8)
    for row, tokens in enumerate([[1, 2, 3], [3, 4], []]):
        surprises = []
        for token in tokens:
            last = token == tokens[-1]
            later = 0.0 if last else float(values[row, token + 1])
            surprises.append((float(rewards[row]) if last else 0.0) + 0.9 * later - float(values[row, token]))
        for place, token in enumerate(tokens):
            wanted = sum((0.9 * 0.8) ** ahead * surprise for ahead, surprise in enumerate(surprises[place:]))
            assert float(advantages[row, token]) == pytest.approx(wanted, abs=1e-6)
            assert float(returns[row, token]) == pytest.approx(wanted + float(values[row, token]), abs=1e-6)
    assert advantages[~mask.bool()].abs().sum() == returns[~mask.bool()].abs().sum() == 0


def test_whitening_leaves_what_does_not_differ_at_zero() -> None:
    mask = torch.tensor([[1, 1, 0], [0, 1, 0]])
    made = whitened(torch.tensor([[1.0, 2.0, 7.0], [7.0, 3.0, 7.0]]), mask)
    assert made[0].tolist() == pytest.approx([-math.sqrt(1.5), 0.0, 0.0])
    assert made[1].tolist() == pytest.approx([0.0, math.sqrt(1.5), 0.0])
    assert whitened(torch.full((2, 3), 0.1), mask).tolist() == [[0.0] * 3] * 2
    assert whitened(torch.ones(2, 3), torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2


def test_the_additions_are_all_there_and_right() -> None:
    problems = read_problems(ADDITIONS, ROOM)
    assert len(set(problems)) == 55  # those below ten
    for problem in problems:
        one, other = problem.prompt.removesuffix("=").split("+")
        assert int(one) + int(other) == int(problem.answer)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"prompt": "1+1=", "answ', "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b'{"prompt": "1+1="}', 'expected {"prompt"'),
        (b'{"prompt": "1+1=", "answer": 2}', 'expected {"prompt"'),
        (b'{"prompt": "", "answer": "2"}', 'expected {"prompt"'),
        (b"[1, 2]", 'expected {"prompt"'),
        (
            b'{"prompt": "1111111111111+11111111111111=", "answer": "2"}',
            "the prompt has 29 bytes, and the model takes 20",
        ),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, expected: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'{"prompt": "1+1=", "answer": "2"}\n\n' + line + b"\n")
    with pytest.raises(TaskFileError) as raised:
        read_problems(path, 20)
    assert str(raised.value).startswith(f"{path}, line 3: {expected}")


def test_a_file_without_problems_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(TaskFileError, match=r"empty\.jsonl: there is no problem in it"):
        read_problems(tmp_path / "empty.jsonl", ROOM)
    with pytest.raises(TaskFileError, match=r"missing\.jsonl: No such file"):
        read_problems(tmp_path / "missing.jsonl", ROOM)


def test_prompts_are_a_function_of_seed_and_step() -> None:
    problems = read_problems(ADDITIONS, ROOM)
    one, again, later = (prompts_of_step(problems, 3, step, 4, 2) for step in (5, 5, 6))
    assert one == again
    assert one["seeds"].tolist() == list(range(40, 48))
    assert later["seeds"].tolist() == list(range(48, 56))
    assert one["group"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert one["prompt"][0] == one["prompt"][1]
    assert one["prompt"].tolist() != later["prompt"].tolist()
    assert bytes(one["input_ids"][0].tolist()).decode() == one["prompt"][0]


def test_some_of_the_examples_are_right() -> None:
    problems = read_problems(ADDITIONS, ROOM)
    for right in (0.0, 0.4, 1.0):
        ids = examples_of_step(problems, 0, 0, 1000, right)["input_ids"]
        texts = [bytes(row.tolist()).strip(b"\0\n").decode().split("=") for row in ids]
        share = sum(eval(prompt) == int(answer) for prompt, answer in texts) / 1000
        chance = sum((total + 1) ** 2 for total in range(10)) / len(problems) ** 2
        assert share == pytest.approx(right + (1 - right) * chance, abs=0.05)


def test_only_the_answers_of_examples_are_learnt() -> None:
    batch = examples_of_step([Problem("9+9=", "18")], 0, 0, 2, 1.0)
    assert bytes(batch["input_ids"][0].tolist()) == b"9+9=18\n"
    assert batch["loss_mask"][0].tolist() == [0, 0, 0, 0, 1, 1, 1]


def asked(*answers: str) -> DataProto:
    return DataProto.from_dict(
        tensors={"seeds": torch.arange(100, 100 + len(answers))},
        non_tensors={"prompt": ["1+1="] * len(answers), "answer": list(answers)},
    )


def answered(*texts: bytes) -> DataProto:
    responses, mask = torch.zeros(2, len(texts), 3, dtype=torch.int64)
    for row, text in enumerate(texts):
        responses[row, : len(text)], mask[row, : len(text)] = torch.tensor(list(text), dtype=torch.int64), 1
    return DataProto.from_dict(tensors={"responses": responses, "response_mask": mask})


def test_answers_are_judged_as_texts_and_empty_ones_are_wrong() -> None:
    with WorkerGroup([2], Judge, backend="inline") as judges:
        made = judges.judge(asked("2", "2", "2", "12", "2"), answered(b"2\n", b"\n", b"", b"12\n", b"\xff2")).get()
    assert made["reward"].tolist() == [1, 0, 0, 1, 0]
    assert made["response"].tolist() == ["2", "", "", "12", "\\xff2"]


@pytest.mark.parametrize("backend", ["inline", "processes"])
def test_a_reward_function_that_fails_says_on_which_sample(backend: str, tmp_path: Path) -> None:
    from fanfold.worker import ClassWithInitArgs  # noqa: PLC0415

    prompts, answers = asked("2", "2", "3"), answered(b"2\n", b"2\n", b"2\n")
    with WorkerGroup([2], ClassWithInitArgs(Judge, str.index), backend=backend) as judges:
        verdicts = judges.judge(prompts, answers)
        with pytest.raises(RewardError) as raised:
            loop.judged(verdicts, prompts | answers, tmp_path)
    assert raised.value.sample == 102
    kept = tmp_path / "failed.safetensors"
    assert str(raised.value) == (
        "the reward function failed on sample 102, '1+1=' answered '2': ValueError: substring not found. "
        f"The batch is kept in {kept}"
    )
    assert isinstance(raised.value.__cause__, GroupCallError)
    batch = DataProto.load(kept)
    assert batch["seeds"].tolist() == [100, 101, 102]
    assert batch["answer"].tolist() == ["2", "2", "3"]
    assert batch["responses"].tolist() == answers["responses"].tolist()


def not_finite(response: str, answer: str) -> float:
    return math.nan


def test_a_reward_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(RewardError, match=r"sample 100.* returned nan, expected a finite number"):
        Judge(not_finite).judge(asked("2"), answered(b"2\n"))


def test_nothing_is_learnt_from_equal_rewards_or_empty_answers() -> None:
    mask = torch.tensor([[0, 1, 1], [0, 0, 0], [0, 1, 0], [0, 1, 1]])
    batch = DataProto.from_dict(
        tensors={
            "attention_mask": torch.ones(4, 3, dtype=torch.int64),
            "loss_mask": mask,
            "reward": torch.tensor([1.0, 0.0, 0.5, 0.5]),
            "group": torch.tensor([0, 0, 1, 1]),
        }
    )
    made = loop.with_advantages(batch, None)
    assert made["advantages"].tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    values = DataProto.from_dict(tensors={"old_values": torch.zeros(4, 3)})
    assert loop.with_advantages(batch, values)["advantages"].isfinite().all()


def test_metrics_of_ranks_become_one_set() -> None:
    ranks = [{"loss": 1.5, "seconds": 2.0, "skew": 0.0}, {"loss": 1.5, "seconds": 3.5, "skew": 0.0}]
    assert merged_metrics(ranks) == {"loss": 1.5, "seconds": 3.5, "skew": 1.5}


def test_the_loop_is_one_and_only_the_set_up_differs() -> None:
    assert vars(arguments)["train"] is loop.train
    for script, models in ((single, single.models_here), (distributed, distributed.models_on_ranks)):
        assert inspect.isgeneratorfunction(inspect.unwrap(models))
        used = vars(script)
        assert used["report"] is arguments.report
        assert not {"train", "one_step", "judged", "with_advantages"} & used.keys()
    lines = [
        line
        for name in ("train", "settle_reference", "one_step")
        for line in inspect.getsource(getattr(loop, name)).splitlines()
    ]
    assert len(lines) < 100


def journal_with(folder: Path, *steps: int, **settings: Any) -> Journal:
    journal = Journal(folder, settings)
    for step in steps:
        with (folder / "metrics.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"step": step, "reward": step / 10}) + "\n")
    return journal


def test_a_run_that_goes_on_forgets_what_it_does_again(tmp_path: Path) -> None:
    journal = journal_with(tmp_path, 0, 1, 2, 3)
    with (tmp_path / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 4, "rew')
    journal.forget_after(2)
    assert journal.rewards == [0.0, 0.1]
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [0, 1]


def test_a_run_goes_on_only_with_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"steps": 2, "checkpoints": {}, "settings": {"seed": 1}}))
    assert journal_with(tmp_path, seed=1).resume(None) == 2
    with pytest.raises(ResumeError, match="is of a run with seed=1; go on with the same"):
        journal_with(tmp_path, seed=2).resume(None)


def test_another_run_is_not_written_over(tmp_path: Path) -> None:
    journal_with(tmp_path / "new").refuse_another_run()
    with pytest.raises(ResumeError, match="has a run already; --resume goes on with it"):
        journal_with(tmp_path, 0).refuse_another_run()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--backend", "inline", "--tp", "2"], "--backend inline has one rank"),
        (["--backend", "processes", "--attach", "me"], "--attach needs --backend ray"),
        (["--algorithm", "dpo"], "invalid choice"),
    ],
)
def test_options_that_do_not_go_together(given: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("", groups=True, arguments=given)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_the_picture_has_a_line_for_each_run(tmp_path: Path) -> None:
    for name, rewards in {"seed 0": [0.0, 1.0], "seed 1": [0.5, 0.5, 0.5]}.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps({"step": step, "reward": reward}) for step, reward in enumerate(rewards)]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    drawn = plot.picture({name: plot.rewards_of(tmp_path / name) for name in ("seed 0", "seed 1")})
    root = ET.fromstring(drawn)
    points = [line.get("points") for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert points[0] == "56.0,256.0 340.0,16.0"
    assert points[2] == points[3] == "56.0,136.0 340.0,136.0 624.0,136.0"
    assert "seed 1" in drawn


def test_several_numbers_are_one_scalar() -> None:
    metrics = {"reward": 1, "loss": [1.0, 2.0], "seconds": {"answers": 0.5, "scores": 2}}
    assert scalars(metrics) == {"reward": 1.0, "loss": 1.5, "seconds/answers": 0.5, "seconds/scores": 2.0}


def test_metrics_are_written_for_tensorboard_once_a_step(tmp_path: Path) -> None:
    for steps in (range(3), range(1, 4)):  # the second run goes on after the first step
        with tensorboard(tmp_path / "tensorboard", steps[0]) as write:
            for step in steps:
                write(step, {"reward": step / 4 + steps[0], "loss": [0.5, 1.5]})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(entry.step, entry.value) for entry in events.Scalars("reward")] == [(0, 0), (1, 1.25), (2, 1.5), (3, 1.75)]
    assert [entry.value for entry in events.Scalars("loss")] == [1.0] * 4


def test_tensorboard_that_is_not_installed_is_said_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(BoardError, match="uv pip install tensorboard"):
        require_tensorboard()
    asked = parse("", arguments=["--tensorboard", "--out", str(tmp_path / "run")])
    assert arguments.report(None, asked) == 1  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_stopping_where_no_cluster_is_says_so_without_a_stack_trace() -> None:
    command = [sys.executable, str(GRPO / "distributed.py"), "--backend", "ray", "--attach", "me", "--stop"]
    done = subprocess.run(
        [*command, "--address", "127.0.0.1:1"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr
    assert "127.0.0.1:1" in done.stderr
