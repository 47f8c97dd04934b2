"""What is on the host is away from the device, and comes back as it was: training goes on to the last bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from fanfold.megatron import ModelConfigError, NotInitialisedError, OffloadedError, OptimizerConfig, ParallelConfig
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer
from text import text_batch

if TYPE_CHECKING:
    from pathlib import Path

    from rank_pool import RankPool

OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bf16": {"precision": "bf16"},
    "distributed": {"optimizer": OptimizerConfig(distributed=True)},
    "bf16-distributed": {"precision": "bf16", "optimizer": OptimizerConfig(distributed=True)},
}


def losses(group: Any, *steps: int) -> list[float]:
    return [group.train_model(text_batch(4, 24, first=4 * step)).meta_info["metrics"]["loss"][0] for step in steps]


@pytest.mark.parametrize("name", OPTIONS)
def test_training_goes_on_as_if_nothing_had_moved(pool: RankPool, name: str) -> None:
    seen = []
    for away in (False, True):
        recipe = ClassWithInitArgs(ProbeTrainer, parallel=ParallelConfig(tensor=2, data=2), seed=2, **OPTIONS[name])
        started: Any = WorkerGroup([4], recipe, backend=pool)
        with started as group:
            group.init_model()
            all_losses = losses(group, 0, 1)
            if away:
                total = group.held_bytes()
                freed = group.offload()
                assert group.held_bytes() == [0] * 4
                assert freed == total
                assert group.offload() == [0] * 4  # it is there already
                assert group.reload() == freed
                assert group.held_bytes() == total
                assert group.reload() == [0] * 4
            seen.append([*all_losses, *losses(group, 2, 3), *group.state_digest()])
    assert seen[0] == seen[1]


def test_parts_move_by_themselves_and_methods_say_what_they_miss(tmp_path: Path) -> None:
    started: Any = WorkerGroup([1], ClassWithInitArgs(ProbeTrainer))
    with started as group:
        with pytest.raises(NotInitialisedError, match="offload on rank 0 needs the model"):
            group.offload()
        group.init_model()
        losses(group, 0)
        digest, batch = group.state_digest(), text_batch(2, 16)
        scores = group.compute_log_prob(batch).batch["log_probs"]

        group.offload(("gradients", "optimizer"))
        assert torch.equal(group.compute_log_prob(batch).batch["log_probs"], scores)
        for call in (lambda: losses(group, 1), lambda: group.save_checkpoint(str(tmp_path))):
            with pytest.raises(OffloadedError, match=r"on rank 0 needs the .*optimizer.* call reload\(\) first"):
                call()
        group.offload()
        for call in (lambda: group.compute_log_prob(batch), group.state_digest, lambda: group.export_hf(str(tmp_path))):
            with pytest.raises(OffloadedError, match="needs the weights, which offload"):
                call()
        assert list(tmp_path.iterdir()) == []
        group.reload(("weights",))
        assert group.state_digest() == digest
        group.reload()
        group.save_checkpoint(str(tmp_path))

        group.offload()
        group.init_model()  # a new model is all there
        losses(group, 0)


def test_parts_that_there_are_not() -> None:
    started: Any = WorkerGroup([1], ClassWithInitArgs(ProbeTrainer))
    with started as group:
        group.init_model()
        with pytest.raises(ModelConfigError, match="must be a tuple of some of weights, gradients, optimizer"):
            group.offload(("moments",))
        with pytest.raises(ModelConfigError, match="parts='weights' must be a tuple"):
            group.reload("weights")
