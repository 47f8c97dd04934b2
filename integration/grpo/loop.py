"""The loop: sample, judge, compare, learn. It does not know where its models run.

`models` are worker objects of this process, or groups of ranks anywhere: the same lines do for both. B rows, T tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advantages import generalised_advantages, group_advantages, masked_mean, over_tokens, whitened
from fanfold.dataproto import DataProto, DataProtoFuture
from fanfold.megatron import (
    LearningRate,
    ModelConfig,
    OptimizerConfig,
    PolicyGradient,
    Sampling,
    ValueLoss,
)
from journal import Journal
from problems import END, Problem, examples_of_step, prompts_of_step
from workers import RewardError

SIZES = ModelConfig(hidden_size=64, ffn_hidden_size=128, num_attention_heads=4, max_sequence_length=32)
PARTS = ("weights", "gradients", "optimizer")
# What of which model is on the device in which phase, where the models share it; the rest waits on the host.
PHASES: dict[str, dict[str, tuple[str, ...]]] = {
    "experience": {"actor": ("weights",), "reference": ("weights",), "critic": ("weights",)},
    "learning": {"reference": (), "actor": PARTS, "critic": PARTS},
}


@dataclass(frozen=True)
class Settings:
    """What is learnt and how; a run is a function of these alone, wherever it runs.

    Attributes:
        algorithm: `grpo` compares the answers to one prompt with each other, `ppo` with what a critic expected.
        seed: Of weights, prompts and answers.
        steps: Steps after the warm-up.
        warm_up_steps: Steps of learning from examples, so that there is something to reward.
        warm_up_rows: Examples of such a step.
        warm_up_right: Share of examples whose answer is right.
        prompts: Prompts of a step.
        samples: Answers to each prompt.
        mini_batches: Optimizer steps of each step.
        max_new_tokens: Most bytes of an answer, its end included.
        temperature: Of the answers.
        kl_coefficient: Weight of the penalty for leaving the reference.
        entropy_coefficient: Weight of the reward for answers that are not all the same, so that there is a search.
        checkpoint_every: Steps between checkpoints.
        samples_every: Steps between written samples.
    """

    algorithm: str = "grpo"
    seed: int = 0
    steps: int = 300
    warm_up_steps: int = 60
    warm_up_rows: int = 64
    warm_up_right: float = 1.0
    prompts: int = 64
    samples: int = 8
    mini_batches: int = 4
    max_new_tokens: int = 2
    temperature: float = 1.0
    kl_coefficient: float = 0.01
    entropy_coefficient: float = 0.01
    checkpoint_every: int = 10
    samples_every: int = 10

    @property
    def optimizer(self) -> OptimizerConfig:
        """Large steps while answers are copied, smaller ones while they are searched."""
        rate = LearningRate(3e-3, decay="linear", decay_steps=max(1, self.warm_up_steps), floor=5e-4)
        return OptimizerConfig(learning_rate=rate)

    @property
    def loss(self) -> PolicyGradient:
        """What the actor learns by."""
        return PolicyGradient(
            kl_coefficient=self.kl_coefficient,
            entropy_coefficient=self.entropy_coefficient,
            temperature=self.temperature,
        )

    @property
    def sampling(self) -> Sampling:
        """How answers are drawn: each row has random numbers of its own, so that every layout draws the same."""
        return Sampling(self.max_new_tokens, self.temperature, stop_tokens=(END,), seed=self.seed)


@dataclass
class Models:
    """Who takes part: workers of this process, or groups of ranks.

    Attributes:
        actor: A `Policy`.
        reference: A `Reference`.
        judge: A `Judge`.
        critic: A `Critic`; PPO needs one.
        take_turns: Whether they share a device, and wait on the host for their turn.
    """

    actor: Any
    reference: Any
    judge: Any
    critic: Any = None
    take_turns: bool = True

    def start(self, settings: Settings, journal: Journal, *, resume: bool) -> int:
        """Build the models, unless they are loaded already, and bring them to where the run is.

        Returns:
            How many steps of it were done.
        """
        if not self.actor.is_loaded():
            for model in filter(None, (self.actor, self.reference, self.critic)):
                model.init_model()
            return journal.resume(self) if resume else 0
        self.enter("learning")
        if resume:
            return journal.resume(self)
        learnt: int = self.actor.steps_done()
        return max(0, learnt - settings.warm_up_steps) // settings.mini_batches

    def enter(self, phase: str) -> None:
        """Bring to the device what a phase needs, after what it does not need has left."""
        if not self.take_turns:
            return
        here = {role: (getattr(self, role), parts) for role, parts in PHASES[phase].items() if getattr(self, role)}
        for model, parts in here.values():
            model.offload(tuple(part for part in PARTS if part not in parts))
        for model, parts in here.values():
            model.reload(parts)


@dataclass
class Clock:
    """Seconds of each phase of a step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what runs inside."""
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began


def train(models: Models, problems: list[Problem], settings: Settings, journal: Journal) -> None:
    """Learn from examples, then from rewards; goes on from the step that the models are at."""
    for step in range(models.actor.steps_done(), settings.warm_up_steps):
        examples = examples_of_step(problems, settings.seed, step, settings.warm_up_rows, settings.warm_up_right)
        models.actor.learn(with_tokens(examples))
        journal.warmed_up(step + 1, settings.warm_up_steps)
    settle_reference(models, settings, journal)
    first = (models.actor.steps_done() - settings.warm_up_steps) // settings.mini_batches
    for step in range(first, settings.steps):
        prompts = prompts_of_step(problems, settings.seed, step, settings.prompts, settings.samples)
        batch, metrics = one_step(models, prompts, settings, journal.folder)
        journal.stepped(step, batch, metrics)
        if (step + 1) % settings.checkpoint_every == 0 or step + 1 == settings.steps:
            models.enter("learning")
            journal.checkpoint(models, step + 1)


def settle_reference(models: Models, settings: Settings, journal: Journal) -> None:
    """Give the reference the weights that the actor had after the warm-up."""
    folder = str(journal.folder / "reference")
    models.enter("learning")
    if models.actor.steps_done() == settings.warm_up_steps:
        models.actor.save_checkpoint(folder, keep=1)
    models.reference.reload()
    models.reference.load_checkpoint(folder, optimizer=False)


def one_step(models: Models, prompts: DataProto, settings: Settings, folder: Path) -> tuple[DataProto, dict[str, Any]]:
    """Do one step of GRPO or PPO.

    Returns:
        Everything that was computed on the way, one row for each answer, and the step's metrics.
    """
    clock = Clock()
    models.enter("experience")
    with clock.phase("answers"):
        answers = models.actor.answer(prompts, settings.sampling)
        # Nothing is waited for here: these go to the ranks as soon as the answers are there, whoever has them.
        verdicts = models.judge.judge(prompts, answers)
        reference = models.reference.score(answers, settings.temperature)
        values = models.critic.expect(answers) if models.critic else None
        batch = prompts.select(batch_keys=["seeds", "group"]) | here(answers)
    with clock.phase("scores"):
        old = models.actor.compute_log_prob(answers, settings.temperature)
        batch = batch | judged(verdicts, batch, folder) | here(reference) | old.rename("log_probs", "old_log_probs")
    with clock.phase("advantages"):
        batch = with_advantages(batch, None if values is None else here(values))
    models.enter("learning")
    with clock.phase("learning"):
        parts = batch.chunk(settings.mini_batches)
        learnt = [models.actor.learn(part, settings.loss).meta_info["metrics"] for part in parts]
        if models.critic:
            valued = [models.critic.learn(part, ValueLoss(clip=0.2)).meta_info["metrics"] for part in parts]
            learnt[0]["critic_loss"] = valued[0]["loss"]
    return batch, metrics_of(batch, learnt, clock.seconds)


def with_tokens(batch: DataProto) -> DataProto:
    """Add `tokens` [B], by which rows are dealt out to the ranks."""
    return batch | DataProto.from_dict(tensors={"tokens": batch["attention_mask"].sum(1)})


def with_advantages(batch: DataProto, values: DataProto | None) -> DataProto:
    """Add `advantages` [B, T], and `old_values` and `returns` [B, T] where a critic has said what it expects."""
    mask, reward = batch["loss_mask"], batch["reward"]
    if values is None:
        added = {"advantages": over_tokens(group_advantages(reward, batch["group"]), mask)}
    else:
        advantages, returns = generalised_advantages(reward, values["old_values"], mask)
        added = {"advantages": whitened(advantages, mask), "returns": returns, "old_values": values["old_values"]}
    return with_tokens(batch | DataProto.from_dict(tensors=added))


def judged(verdicts: Any, batch: DataProto, folder: Path) -> DataProto:
    """Wait for the verdicts; where the reward function fails, keep the batch that it failed on.

    Raises:
        RewardError: Names the sample and where the batch is.
    """
    try:
        return here(verdicts)
    except RewardError as error:
        kept = folder / "failed.safetensors"
        batch.save(kept)
        prompt, response, problem = error.what
        raise RewardError(error.sample, prompt, response, f"{problem}. The batch is kept in {kept}") from error


def here(value: Any) -> DataProto:
    """Return a batch that may not be here yet."""
    batch: DataProto = value.get() if isinstance(value, DataProtoFuture) else value
    return batch


def metrics_of(batch: DataProto, learnt: list[dict[str, Any]], seconds: dict[str, float]) -> dict[str, Any]:
    """Return what a step is judged by."""
    mask, reward = batch["loss_mask"], batch["reward"]
    away = (batch["ref_log_probs"] - batch["old_log_probs"]) * mask
    tokens = int(batch["attention_mask"].sum())
    return {
        "reward": float(reward.mean()),
        "loss": [metrics["loss"] for metrics in learnt],
        "gradient_norm": [metrics["grad_norm"] for metrics in learnt],
        "kl": masked_mean(away.exp() - away - 1, mask),
        "entropy": masked_mean(batch["entropy"], mask),
        "tokens": tokens,
        "tokens_per_second": tokens / sum(seconds.values()),
        "seconds": seconds,
        "skew": batch.meta_info["metrics"]["skew"],
        **{name: learnt[0][name] for name in ("critic_loss",) if name in learnt[0]},
    }
