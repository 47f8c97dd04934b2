"""Through a backend with a process for each rank, as on a workstation, from start to end."""

from __future__ import annotations

from typing import Any

import pytest
from fanfold.megatron import MegatronTrainer, ParallelConfig
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from text import text_batch


def test_two_processes_train_like_one_inline_rank() -> None:
    losses = []
    for ranks, backend in ((1, "inline"), (2, "processes")):
        recipe = ClassWithInitArgs(MegatronTrainer, parallel=ParallelConfig(tensor=ranks))
        started: Any = WorkerGroup([ranks], recipe, backend=backend)
        with started as group:
            group.init_model()
            steps = [group.train_model(text_batch(4, 32, padded=True)) for _ in range(2)]
            losses.append([step.meta_info["metrics"]["loss"][0] for step in steps])
    assert losses[1] == pytest.approx(losses[0], abs=5e-6)
