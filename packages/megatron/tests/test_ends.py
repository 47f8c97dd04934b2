"""What models and groups that have ended leave in a process that goes on."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
from fanfold.megatron import OptimizerConfig
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer
from text import text_batch

KINDS = pytest.mark.parametrize("distributed", [False, True], ids=["whole optimizer", "distributed optimizer"])


def alone(*, distributed: bool) -> Any:
    return WorkerGroup([1], ClassWithInitArgs(ProbeTrainer, optimizer=OptimizerConfig(distributed=distributed)))


@pytest.mark.skipif(sys.platform != "linux", reason="threads of C++ are counted in /proc")
@KINDS
def test_no_threads_are_left_of_groups_that_have_ended(*, distributed: bool) -> None:
    counts = []
    for _ in range(4):
        with alone(distributed=distributed) as group:
            group.init_model()
            group.train_model(text_batch(2, 16))
            group.compute_log_prob(text_batch(2, 16))
            counts += group.count_threads()
    assert counts[1:] == [counts[1]] * 3  # the first one may start what stays, such as a pool of torch's own


@KINDS
def test_a_new_model_is_the_only_one(*, distributed: bool) -> None:
    with alone(distributed=distributed) as group:
        for _ in range(3):
            group.init_model()
            group.train_model(text_batch(2, 16))
        gc.collect()
        models = [each for each in gc.get_objects() if type(each).__name__ in ("GPTModel", "DistributedDataParallel")]
        assert sorted(type(each).__name__ for each in models) == ["DistributedDataParallel", "GPTModel"]
