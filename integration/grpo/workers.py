"""What runs on the ranks: a policy, a frozen reference, a critic, and plain Python that judges answers.

Called on a worker object, each method returns its value. Called on a group, the same method divides its rows over the
data-parallel ranks; those that do not block return a future, and others can run meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from fanfold.dataproto import DataProto
from fanfold.dispatch import Dispatch, register
from fanfold.dispatch import make_nd_compute_dataproto_dispatch_fn as rows_of_mesh
from fanfold.megatron import MegatronTrainer, Sampling, TokenLoss
from fanfold.worker import Worker
from problems import text_of

ROWS = rows_of_mesh(mesh_name="train")
PROMPT_COLUMNS = ("input_ids", "attention_mask", "seeds")  # texts stay with the driver


def merged_metrics(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make one set of metrics of those of all ranks: what is of the global batch is the same on each of them."""
    seconds = [rank["seconds"] for rank in ranks]
    return {**ranks[0], "seconds": max(seconds), "skew": max(seconds) - min(seconds)}


ONE_SET = {"metrics": merged_metrics}


class Learner(MegatronTrainer):
    """A model that learns from experience."""

    @register(ROWS, balance="tokens", merge=ONE_SET)
    def learn(self, batch: DataProto, loss: TokenLoss | None = None) -> DataProto:
        """Do one optimizer step on rows that are dealt out by their number of tokens; see `train_model`."""
        began = time.perf_counter()
        done = self.train_model(batch, loss)
        done.meta_info["metrics"] |= {"seconds": time.perf_counter() - began, "skew": 0.0}
        return done

    @register(Dispatch.RANK_ZERO)
    def steps_done(self) -> int:
        """Return how many optimizer steps these weights have seen."""
        return self.step

    @register(Dispatch.RANK_ZERO)
    def is_loaded(self) -> bool:
        """Say whether the model was made: it was, where a driver before this one left it."""
        return self._built is not None


class Policy(Learner):
    """The model that answers, and learns from what its answers earned."""

    @register(ROWS, blocking=False, reads=PROMPT_COLUMNS, merge=ONE_SET)
    def answer(self, prompts: DataProto, sampling: Sampling) -> DataProto:
        """Continue prompts; see `MegatronTrainer.generate`."""
        began = time.perf_counter()
        made = self.generate(prompts, sampling)
        made.meta_info["metrics"] = {"seconds": time.perf_counter() - began, "skew": 0.0}
        return made


class Reference(MegatronTrainer):
    """The policy as it was before the first reward; it only scores."""

    @register(ROWS, blocking=False)
    def score(self, rows: DataProto, temperature: float = 1.0) -> DataProto:
        """Return `ref_log_probs` [B, T]; see `compute_log_prob`."""
        scored = self.compute_log_prob(rows, temperature)
        return DataProto.from_dict(tensors={"ref_log_probs": scored["log_probs"]})


class Critic(Learner):
    """A value model: what reward it expects, before each token."""

    @register(ROWS, blocking=False)
    def expect(self, rows: DataProto) -> DataProto:
        """Return `old_values` [B, T]; see `compute_values`."""
        return DataProto.from_dict(tensors={"old_values": self.compute_values(rows)["values"]})


class RewardError(ValueError):
    """The reward function failed on one sample.

    Attributes:
        sample: The sample's number, the column `seeds`.
    """

    def __init__(self, sample: int, prompt: str, response: str, problem: str) -> None:
        self.sample = sample
        self.what = (prompt, response, problem)
        super().__init__(sample, prompt, response, problem)

    def __str__(self) -> str:
        prompt, response, problem = self.what
        return f"the reward function failed on sample {self.sample}, {prompt!r} answered {response!r}: {problem}"


def is_right(response: str, answer: str) -> float:
    """Return 1 for the right answer and 0 for any other, an empty one among them."""
    return float(response == answer)


class Judge(Worker):
    """Plain Python on a CPU: looks at texts, knows no model.

    Args:
        function: What a response earns, given the right answer.
    """

    def __init__(self, function: Callable[[str, str], float] = is_right) -> None:
        super().__init__()
        self.function = function

    @register(Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def judge(self, prompts: DataProto, answers: DataProto) -> DataProto:
        """Judge each row.

        Returns:
            `reward` [B] float32, and as Python objects `response`, the text that was judged.

        Raises:
            RewardError: The function failed, or gave no finite number; names the sample.
        """
        pairs = zip(answers["responses"], answers["response_mask"], strict=True)
        responses = [text_of(tokens, mask) for tokens, mask in pairs]
        rewards = [self._judged(prompts, row, response) for row, response in enumerate(responses)]
        return DataProto.from_dict(tensors={"reward": torch.tensor(rewards)}, non_tensors={"response": responses})

    def _judged(self, prompts: DataProto, row: int, response: str) -> float:
        sample, prompt, answer = (prompts[column][row] for column in ("seeds", "prompt", "answer"))
        try:
            reward = float(self.function(response, answer))
        except Exception as error:
            raise RewardError(int(sample), prompt, response, f"{type(error).__name__}: {error}") from error
        if not torch.tensor(reward).isfinite():
            raise RewardError(int(sample), prompt, response, f"it returned {reward}, expected a finite number")
        return reward
