"""What models and groups that have ended leave in a process that goes on."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from fanfold.megatron import OptimizerConfig, Sampling
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer
from text import text_batch

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.skipif(torch.cuda.is_available(), reason="the seam is for processes without CUDA")
def test_a_whole_training_leaves_torch_as_it_was(tmp_path: Path) -> None:
    with alone(distributed=False) as group:
        before = {name: value for name, value in vars(torch.cuda).items() if callable(value)}
        random = torch.get_rng_state()
        group.init_model()
        group.train_model(text_batch(2, 16))
        group.compute_log_prob(text_batch(2, 16))
        group.generate(text_batch(2, 8), Sampling(max_new_tokens=2))
        group.save_checkpoint(str(tmp_path))
        group.load_checkpoint(str(tmp_path))
        group.export_hf(str(tmp_path / "hf"))
        after = {name: value for name, value in vars(torch.cuda).items() if callable(value)}
    assert [name for name, value in before.items() if after[name] is not value] == []
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.zeros(2).type() == "torch.FloatTensor"


@KINDS
def test_a_new_model_is_the_only_one(*, distributed: bool) -> None:
    with alone(distributed=distributed) as group:
        for _ in range(3):
            group.init_model()
            group.train_model(text_batch(2, 16))
        gc.collect()
        models = [each for each in gc.get_objects() if type(each).__name__ in ("GPTModel", "DistributedDataParallel")]
        assert sorted(type(each).__name__ for each in models) == ["DistributedDataParallel", "GPTModel"]
