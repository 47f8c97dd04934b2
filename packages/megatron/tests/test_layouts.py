"""The same numbers in every layout: what the whole package is for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rank_pool import RankPool
from text import text_batch

from fanfold.dispatch import Dispatch, register
from fanfold.megatron import MegatronTrainer, ModelConfig, OptimizerConfig, ParallelConfig, in_megatron
from fanfold.megatron.worker import load_engine
from fanfold.worker import ClassWithInitArgs, WorkerGroup

MODEL = ModelConfig(hidden_size=256, ffn_hidden_size=512, num_query_groups=2)
STEPS = 3


class Trainer(MegatronTrainer):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def gather_weights(self) -> dict[str, torch.Tensor]:
        """Return this rank's weights by their names in the whole model."""
        named = load_engine("model").named_weights(self._built.module)
        return {name: weight.detach().clone() for name, weight in named}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def first_gradients(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return this rank's gradients for rows of which it takes its share, without a step."""
        step = load_engine("step")
        share = batch.chunk(self.parallel.replicas)[self.data_parallel_rank]
        rows, error = self._read(share)
        plan = step.agree_on_step(rows, error, self.parallel, self.micro_batch_size, self.tensor_device)
        step.forward_backward(self._built, rows, plan, self.parallel, step.cross_entropy, self.tensor_device)
        named = load_engine("model").named_weights(self._built.module)
        return {name: weight.main_grad.detach().clone() for name, weight in named}


class Run:
    """What a layout came to: three steps, then the weights of the whole model."""

    def __init__(self, pool: RankPool, layout: ParallelConfig, **options: Any) -> None:
        recipe = ClassWithInitArgs(Trainer, model=MODEL, parallel=layout, micro_batch_size=4 // layout.replicas, seed=5, **options)
        with WorkerGroup([layout.world_size], recipe, backend=pool) as group:
            group.init_model()
            self.gradients = whole(layout, group.first_gradients(text_batch(8, 128)))
            steps = [group.train_model(text_batch(8, 128, first=8 * step)) for step in range(STEPS)]
            self.row_losses = torch.stack([step.batch["loss"] for step in steps])
            self.losses = [step.meta_info["metrics"]["loss"][0] for step in steps]
            self.norms = [step.meta_info["metrics"]["grad_norm"][0] for step in steps]
            self.weights = whole(layout, group.gather_weights())


def whole(layout: ParallelConfig, shards: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Put the weights or gradients of all ranks together."""
    from fanfold.megatron.weights import division_of  # noqa: PLC0415

    weights: dict[str, torch.Tensor] = {}
    for ranks in layout.groups("tp"):
        for name in shards[ranks[0]]:
            weights[name] = division_of(name).join([shards[rank][name] for rank in ranks])
    return weights


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
    differences = {
        "loss": max(abs(a - b) for a, b in zip(run.losses, alone.losses, strict=True)),
        "norm": max(abs(a - b) for a, b in zip(run.norms, alone.norms, strict=True)),
        "row": float((run.row_losses - alone.row_losses).abs().max()),
        "weight": max(float((run.weights[key] - alone.weights[key]).abs().max()) for key in alone.weights),
        "gradient": max(float((run.gradients[key] - alone.gradients[key]).abs().max()) for key in alone.gradients),
    }
    print(name, differences, alone.losses, alone.norms)  # noqa: T201
    assert run.weights.keys() == alone.weights.keys()
    assert differences["loss"] < 1e-6
    assert differences["norm"] < 3e-6
    assert differences["gradient"] < 1e-7


def test_the_model_learns(alone: Run) -> None:
    assert alone.losses[0] == pytest.approx(5.6, abs=0.1)
    assert alone.losses[2] < alone.losses[1] < alone.losses[0]
