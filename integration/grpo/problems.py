"""What is learnt: problems with one right answer, from a file of JSON lines, as batches of bytes.

B rows, P prompts, S samples of each, T tokens of a prompt, N of a response. A vocabulary of 256 is exactly bytes.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from fanfold.dataproto import DataProto

ADDITIONS = Path(__file__).parent / "tasks" / "additions.jsonl"
END = 10  # a response ends with a line


class TaskFileError(ValueError):
    """A file of problems that cannot be used; names the file and the line."""


@dataclass(frozen=True)
class Problem:
    """A prompt and the only right answer to it."""

    prompt: str
    answer: str


def read_problems(path: Path, longest: int) -> list[Problem]:
    """Read one problem a line, `{"prompt": "3+4=", "answer": "7"}`; empty lines are left out.

    Args:
        path: The file.
        longest: Most bytes of a prompt: what the model takes, less the response.

    Raises:
        TaskFileError: There is no such file, nothing is in it, or a line is broken or too long.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TaskFileError(f"{path}: {error.strerror}; --tasks names a file of JSON lines") from error
    problems = [_problem(path, number, line, longest) for number, line in enumerate(lines, start=1) if line.strip()]
    if not problems:
        raise TaskFileError(f"{path}: there is no problem in it, expected one a line")
    return problems


def _problem(path: Path, number: int, line: bytes, longest: int) -> Problem:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise TaskFileError(f"{path}, line {number}: no JSON ({error}); got {line[:60]!r}") from error
    expected = 'expected {"prompt": "3+4=", "answer": "7"}'
    texts = [found.get(key) for key in ("prompt", "answer")] if isinstance(found, dict) else []
    prompt, answer = (text if isinstance(text, str) else "" for text in texts or ("", ""))
    if not (prompt and answer):
        raise TaskFileError(f"{path}, line {number}: {expected}; got {line[:60]!r}")
    problem = Problem(prompt, answer)
    size = len(problem.prompt.encode())
    if size > longest:
        raise TaskFileError(
            f"{path}, line {number}: the prompt has {size} bytes, and the model takes {longest} with a response "
            "behind it; shorten it, or raise max_sequence_length"
        )
    return problem


def prompts_of_step(problems: list[Problem], seed: int, step: int, count: int, samples: int) -> DataProto:
    """Draw prompts, each as often in a row as it is to be answered; the same for the same seed and step.

    Returns:
        B = P x S rows: `input_ids`, `attention_mask` [B, T], `seeds` [B] (each row's own random numbers, in any
        layout), `group` [B] (which prompt), and as Python objects `prompt` and `answer` [B].
    """
    drawn = random.Random(f"{seed}/prompts/{step}")  # noqa: S311 no secret
    chosen = [drawn.choice(problems) for _ in range(count)]
    rows = [problem for problem in chosen for _ in range(samples)]
    tensors = padded([problem.prompt.encode() for problem in rows])
    numbers = torch.arange(len(rows))
    return DataProto.from_dict(
        tensors={**tensors, "seeds": step * len(rows) + numbers, "group": numbers // samples},
        non_tensors={"prompt": [problem.prompt for problem in rows], "answer": [problem.answer for problem in rows]},
    )


def examples_of_step(problems: list[Problem], seed: int, step: int, count: int, right: float) -> DataProto:
    """Draw problems with answers, to learn from before any reward is given; some with the answer to another problem.

    Args:
        problems: All of them.
        seed: Of the run.
        step: Of the warm-up.
        count: Rows.
        right: Share of right answers.

    Returns:
        `input_ids`, `attention_mask`, and `loss_mask` (1 for the answer), each [B, T].
    """
    drawn = random.Random(f"{seed}/examples/{step}")  # noqa: S311 no secret
    chosen = [drawn.choice(problems) for _ in range(count)]
    answers = [problem.answer if drawn.random() < right else drawn.choice(problems).answer for problem in chosen]
    tensors = padded([f"{problem.prompt}{answer}\n".encode() for problem, answer in zip(chosen, answers, strict=True)])
    starts = torch.tensor([len(problem.prompt.encode()) for problem in chosen])[:, None]
    behind = torch.arange(tensors["input_ids"].shape[1])[None, :] >= starts
    return DataProto.from_dict(tensors={**tensors, "loss_mask": tensors["attention_mask"] * behind})


def padded(texts: list[bytes]) -> dict[str, torch.Tensor]:
    """Return `input_ids` and `attention_mask` [B, T], padded at the right."""
    longest = max(map(len, texts))
    ids, mask = torch.zeros(2, len(texts), longest, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = torch.tensor(list(text)), 1
    return {"input_ids": ids, "attention_mask": mask}


def text_of(tokens: torch.Tensor, mask: torch.Tensor) -> str:
    """Return a response as text, without the end that closes it; bytes that are no text are shown as such."""
    taken = bytes(tokens[mask.bool()].tolist())
    return taken.removesuffix(bytes([END])).decode(errors="backslashreplace")
