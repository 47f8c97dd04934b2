"""What training draws: by dropout and by losses; the same again after a resume, and nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from fanfold.megatron import ModelConfig, OptimizerConfig, ParallelConfig, Sampling
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from losses_of_users import Noisy
from probe import ProbeTrainer
from text import text_batch

if TYPE_CHECKING:
    from pathlib import Path

    from rank_pool import RankPool

DROPPING = ModelConfig(hidden_size=64, ffn_hidden_size=96, hidden_dropout=0.2, attention_dropout=0.1)
LAYOUTS = {
    "alone": ParallelConfig(data=1),
    "tp2-dp2": ParallelConfig(tensor=2, data=2),
    "tp2-sp-pp2": ParallelConfig(tensor=2, pipeline=2, data=1, sequence_parallel=True),
    "cp2-dp2": ParallelConfig(context=2, data=2),
}


def group_on(pool: RankPool | str, layout: ParallelConfig, **options: Any) -> Any:
    options = {"model": DROPPING, "seed": 3, **options}
    return WorkerGroup([layout.world_size], ClassWithInitArgs(ProbeTrainer, parallel=layout, **options), backend=pool)


def alone(**options: Any) -> Any:
    return group_on("inline", ParallelConfig(data=1), **options)


def train(group: Any, *steps: int, **options: Any) -> list[float]:
    batches = (text_batch(4, 32, padded=True, first=4 * step) for step in steps)
    return [group.train_model(batch, **options).meta_info["metrics"]["loss"][0] for batch in batches]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "cp2-dp2" else ()) for name in LAYOUTS]
)
def test_with_dropout_resuming_is_exact(pool: RankPool, tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    with group_on(pool, layout) as group:
        group.init_model()
        train(group, 0, 1)
        group.save_checkpoint(str(tmp_path))
        losses, digest = train(group, 2, 3), group.state_digest()
    with group_on(pool, layout, seed=8) as group:
        group.init_model()
        train(group, 5)  # draws that are undone
        group.load_checkpoint(str(tmp_path))
        assert train(group, 2, 3) == losses
        assert group.state_digest() == digest


def test_a_loss_that_draws_and_continuations_resume_exactly(tmp_path: Path) -> None:
    sampling = Sampling(max_new_tokens=5, temperature=0.8, seed=4)

    def go_on(group: Any) -> tuple[list[float], list[list[int]]]:
        losses = train(group, 2, 3, loss=Noisy())
        return losses, group.generate(text_batch(3, 8), sampling).batch["responses"].tolist()

    with alone() as group:
        group.init_model()
        train(group, 0, loss=Noisy())
        group.save_checkpoint(str(tmp_path))
        first = go_on(group)
        second = go_on(group)
        group.load_checkpoint(str(tmp_path))
        assert go_on(group) == first
        assert second != first


def test_dropout_drops_in_training_alone_and_by_the_seed() -> None:
    losses = {}
    for seed, model in ((1, DROPPING), (2, DROPPING), (1, ModelConfig(hidden_size=64, ffn_hidden_size=96))):
        with alone(model=model, seed=seed) as group:
            group.init_model()
            scores = [group.compute_log_prob(text_batch(2, 16)).batch["log_probs"] for _ in range(2)]
            assert torch.equal(*scores)
            losses[seed, model is DROPPING] = train(group, 0, 0)
            group.init_model()
            assert train(group, 0, 0) == losses[seed, model is DROPPING]
    assert losses[1, True][0] != losses[1, False][0]  # from the same weights
    assert losses[1, True] != losses[2, True]


def test_the_callers_random_numbers_are_the_callers() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(6).tolist()
    torch.manual_seed(5)
    with alone() as group:
        seen = torch.rand(2).tolist()
        group.init_model()
        first = train(group, 0)
        seen += torch.rand(2).tolist()
        second = train(group, 1)
        seen += torch.rand(2).tolist()
        assert seen == wanted
        group.init_model()
        assert train(group, 0) + train(group, 1) == first + second


def test_axes_that_share_random_numbers(pool: RankPool) -> None:
    layout = ParallelConfig(tensor=2, data=2)
    with group_on(pool, layout) as group:
        group.init_model()
        states = group.random_states()
        train(group, 0, 1)
        weights = group.gather_weights()
    # Tensor ranks that did not drop the same of the residual stream would come to other weights of the norms.
    for name in (name for name in weights[0] if name.endswith("norm.weight")):
        assert all(torch.equal(weights[0][name], of_rank[name]) for of_rank in weights[1:])
    # Replicas drop differently, and come to the same weights all the same.
    assert all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    host = [state["host"].tolist() for state in states]
    streams = [state["stream model-parallel-rng"].tolist() for state in states]
    for first in range(4):
        for second in range(first):
            replicas = (layout.coordinates(first)["dp"], layout.coordinates(second)["dp"])
            assert (host[first] == host[second]) == (replicas[0] == replicas[1])
            assert streams[first] != streams[second]


def test_in_another_layout_training_draws_anew_and_goes_on(pool: RankPool, tmp_path: Path) -> None:
    with alone() as group:
        group.init_model()
        train(group, 0)
        group.save_checkpoint(str(tmp_path))
        before = group.random_states()[0]
    with group_on(pool, ParallelConfig(data=2)) as group:
        group.init_model()
        fresh = group.random_states()
        assert group.load_checkpoint(str(tmp_path)) == [1, 1]
        after = group.random_states()
        assert not torch.equal(after[0]["host"], fresh[0]["host"])
        assert not torch.equal(after[0]["host"], before["host"])
        assert train(group, 1)[0] < 6


def test_a_distributed_optimizer_resumes_exactly_with_dropout(pool: RankPool, tmp_path: Path) -> None:
    from probe import writes_distributed_optimizers  # noqa: PLC0415  # it imports Megatron-Core

    if not writes_distributed_optimizers():
        pytest.skip("this Megatron-Core writes no distributed optimizer that others read")
    options = {"optimizer": OptimizerConfig(distributed=True)}
    with group_on(pool, ParallelConfig(data=2), **options) as group:
        group.init_model()
        train(group, 0)
        group.save_checkpoint(str(tmp_path))
        losses = train(group, 1, 2)
        group.load_checkpoint(str(tmp_path))
        assert train(group, 1, 2) == losses
