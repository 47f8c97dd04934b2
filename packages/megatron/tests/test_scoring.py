"""Log-probabilities and entropies against a plain float64 model of the same weights, in every layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import reference
import torch
from fanfold.megatron import BatchError, ModelConfig, ParallelConfig
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer, whole
from text import text_batch

if TYPE_CHECKING:
    from rank_pool import RankPool

MODEL = ModelConfig(hidden_size=64, ffn_hidden_size=96, num_query_groups=2, vocab_size=256)


def wanted(weights: dict[str, torch.Tensor], batch: Any, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs, entropy = (torch.zeros(batch.batch["input_ids"].shape, dtype=torch.float64) for _ in range(2))
    for row in range(len(batch)):
        places = batch.batch["attention_mask"][row].nonzero().flatten()
        ids = batch.batch["input_ids"][row, places]
        predicted = (reference.logits(weights, MODEL, ids) / temperature).log_softmax(-1)[:-1]
        log_probs[row, places[1:]] = predicted.gather(1, ids[1:, None]).squeeze(1)
        entropy[row, places[1:]] = -(predicted.exp() * predicted).sum(-1)
    return log_probs, entropy


LAYOUTS = {
    "alone": ParallelConfig(data=1),
    "tp2": ParallelConfig(tensor=2, data=1),
    "pp2": ParallelConfig(pipeline=2, data=1),
    "cp2": ParallelConfig(context=2, data=1),
    "dp2": ParallelConfig(data=2),
    "tp2-pp2": ParallelConfig(tensor=2, pipeline=2, data=1),
    "tp2-cp2-sp": ParallelConfig(tensor=2, context=2, data=1, sequence_parallel=True),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_the_plain_model(pool: RankPool, name: str, temperature: float) -> None:
    layout = LAYOUTS[name]
    recipe = ClassWithInitArgs(ProbeTrainer, model=MODEL, parallel=layout, micro_batch_size=2, seed=11)
    started: Any = WorkerGroup([layout.world_size], recipe, backend=pool)
    with started as group:
        group.init_model()
        group.train_model(text_batch(6, 37, first=6))  # away from weights that predict nothing
        batch = text_batch(5, 37, padded=True)
        result = group.compute_log_prob(batch, temperature=temperature)
        weights = whole(layout, group.gather_weights())
    log_probs, entropy = wanted(weights, batch, temperature)
    assert float((result.batch["log_probs"] - log_probs).abs().max()) < 1e-5
    assert float((result.batch["entropy"] - entropy).abs().max()) < 1e-5


def test_scoring_changes_nothing_and_refuses_what_it_cannot_do() -> None:
    started: Any = WorkerGroup([1], ClassWithInitArgs(ProbeTrainer, model=MODEL))
    with started as group:
        group.init_model()
        before = group.gather_weights()[0]
        first, second = (group.compute_log_prob(text_batch(2, 16)).batch["log_probs"] for _ in range(2))
        assert torch.equal(first, second)
        assert all(torch.equal(weight, before[name]) for name, weight in group.gather_weights()[0].items())
        with pytest.raises(BatchError, match="temperature=0 must be above 0"):
            group.compute_log_prob(text_batch(2, 16), temperature=0)
