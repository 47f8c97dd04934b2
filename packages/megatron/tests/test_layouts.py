"""The same numbers in every layout: what the whole package is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from fanfold.megatron import ModelConfig, OptimizerConfig, ParallelConfig
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer, whole
from text import text_batch

if TYPE_CHECKING:
    from rank_pool import RankPool

MODEL = ModelConfig(hidden_size=256, ffn_hidden_size=512, num_query_groups=2)
STEPS = 3


class Run:
    """What a layout came to: three steps, then the weights of the whole model."""

    def __init__(self, pool: RankPool, layout: ParallelConfig, **options: Any) -> None:
        recipe = ClassWithInitArgs(
            ProbeTrainer, model=MODEL, parallel=layout, micro_batch_size=4 // layout.replicas, seed=5, **options
        )
        started: Any = WorkerGroup([layout.world_size], recipe, backend=pool)
        with started as group:
            group.init_model()
            self.gradients = whole(layout, group.first_gradients(text_batch(8, 128)))
            steps = [group.train_model(text_batch(8, 128, first=8 * step)) for step in range(STEPS)]
            self.row_losses = torch.stack([step.batch["loss"] for step in steps])
            self.losses = [step.meta_info["metrics"]["loss"][0] for step in steps]
            self.norms = [step.meta_info["metrics"]["grad_norm"][0] for step in steps]
            self.weights = whole(layout, group.gather_weights())


@pytest.fixture(scope="module")
def alone(pool: RankPool) -> Run:
    return Run(pool, ParallelConfig(data=1))


LAYOUTS = {
    "tp2": (ParallelConfig(tensor=2, data=1), {}),
    "pp2": (ParallelConfig(pipeline=2, data=1), {}),
    "dp2": (ParallelConfig(data=2), {}),
    "cp2": (ParallelConfig(context=2, data=1), {}),
    "tp2-sp": (ParallelConfig(tensor=2, data=1, sequence_parallel=True), {}),
    "dp2-distributed": (ParallelConfig(data=2), {"optimizer": OptimizerConfig(distributed=True)}),
    "dp2-overlap": (ParallelConfig(data=2), {"optimizer": OptimizerConfig(overlap_gradients=True)}),
    "tp2-dp2": (ParallelConfig(tensor=2, data=2), {}),
    "tp2-pp2": (ParallelConfig(tensor=2, pipeline=2, data=1), {}),
    "tp2-cp2": (ParallelConfig(tensor=2, context=2, data=1), {}),
    "tp2-dp2-sp-distributed": (
        ParallelConfig(tensor=2, data=2, sequence_parallel=True),
        {"optimizer": OptimizerConfig(distributed=True)},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_same_numbers_as_one_rank(pool: RankPool, alone: Run, name: str) -> None:
    layout, options = LAYOUTS[name]
    run = Run(pool, layout, **options)
    assert run.losses == pytest.approx(alone.losses, abs=1e-6)
    assert run.row_losses.tolist() == [pytest.approx(row, abs=3e-6) for row in alone.row_losses.tolist()]
    # Megatron adds up the norm in float32, over other parts in each layout.
    assert run.norms == pytest.approx(alone.norms, rel=3e-6)
    assert run.weights.keys() == alone.weights.keys()
    for key, weight in alone.weights.items():
        assert_close(run.weights[key], weight, 1e-5, key)
    if "distributed" not in name:  # there each rank has the sum of its own part of the gradient alone
        for key, gradient in alone.gradients.items():
            assert_close(run.gradients[key], gradient, 1e-6 * float(gradient.abs().max()), key)


def assert_close(got: torch.Tensor, wanted: torch.Tensor, limit: float, name: str) -> None:
    difference = float((got - wanted).abs().max())
    assert difference < limit, f"{name} differs by {difference}"


def test_the_model_learns(alone: Run) -> None:
    assert alone.losses[0] == pytest.approx(5.6, abs=0.1)
    assert alone.losses[2] < alone.losses[1] < alone.losses[0]
