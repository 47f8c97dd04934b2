"""The trainer through a worker group: one inline rank, and the pool of processes for what needs more."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from fanfold.dataproto import DataProto
from fanfold.megatron import (
    BatchError,
    LayoutClashError,
    LayoutError,
    LearningRate,
    ModelConfig,
    ModelConfigError,
    NonFiniteLossError,
    NotInitialisedError,
    OptimizerConfig,
    ParallelConfig,
)
from fanfold.worker import ClassWithInitArgs, StartedRank, WorkerGroup
from probe import ProbeTrainer
from text import text_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rank_pool import RankPool

LOSS_OF_CHANCE = 5.545177  # ln 256


def alone(**options: Any) -> WorkerGroup[ProbeTrainer]:
    group: WorkerGroup[ProbeTrainer] = WorkerGroup([1], ClassWithInitArgs(ProbeTrainer, **options))
    return group


def on(pool: RankPool, ranks: int, **options: Any) -> WorkerGroup[ProbeTrainer]:
    return WorkerGroup([ranks], ClassWithInitArgs(ProbeTrainer, **options), backend=pool)


@pytest.fixture
def trainer() -> Iterator[Any]:
    with alone() as group:
        group.init_model()
        yield group


def metrics(result: DataProto) -> dict[str, Any]:
    return {name: value[0] for name, value in result.meta_info["metrics"].items()}


def changed(batch: DataProto, *, row: int, position: int, token: int) -> DataProto:
    assert batch.batch is not None
    batch.batch["input_ids"][row, position] = token
    return batch


def test_training_lowers_the_loss(trainer: Any) -> None:
    seen = [metrics(trainer.train_model(text_batch(4, 64, first=step % 2 * 4))) for step in range(12)]
    assert seen[0]["loss"] == pytest.approx(LOSS_OF_CHANCE, abs=0.15)
    assert seen[-1]["loss"] < seen[0]["loss"] - 1.5
    assert [each["step"] for each in seen] == list(range(1, 13))
    assert {each["tokens"] for each in seen} == {4 * 63.0}
    assert {each["learning_rate"] for each in seen} == {1e-3}
    assert all(each["applied"] == 1 and each["grad_norm"] > 0 for each in seen)


def test_init_says_what_is_there(trainer: Any) -> None:
    assert trainer.init_model() == [
        {"parameters": ModelConfig().parameter_count, "device": "cpu gloo float32", "rank": 0, "step": 0}
    ]


def test_row_losses_are_the_rows_own(trainer: Any) -> None:
    result = trainer.train_model(text_batch(4, 64, padded=True))
    targets = result.batch["targets"]
    assert targets.tolist() == [63, 53, 46, 63]
    weighted = float((result.batch["loss"].double() * targets).sum() / targets.sum())
    assert metrics(result)["loss"] == pytest.approx(weighted, abs=1e-6)
    assert metrics(result)["tokens"] == 225


def test_left_and_right_padding_are_the_same_to_the_model(trainer: Any) -> None:
    rows = text_batch(2, 32)
    assert rows.batch is not None
    ids = rows.batch["input_ids"]
    padding = torch.zeros(2, 16, dtype=torch.int64)
    losses = []
    for before, behind in (
        (padding[:, :0], padding[:, :0]),
        (padding, padding[:, :0]),
        (padding[:, :5], padding[:, 5:]),
    ):
        trainer.init_model()
        mask = torch.cat([before, torch.ones_like(ids), behind], dim=1)
        columns = {"input_ids": torch.cat([before, ids, behind], dim=1), "attention_mask": mask}
        losses.append(trainer.train_model(DataProto.from_dict(tensors=columns)).batch["loss"])
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])


def test_only_the_loss_mask_counts(trainer: Any) -> None:
    batch = text_batch(2, 16)
    mask = torch.zeros(2, 16, dtype=torch.int64)
    mask[0, 5:9] = 1
    result = trainer.train_model(batch.union(DataProto.from_dict(tensors={"loss_mask": mask})))
    assert result.batch["targets"].tolist() == [4, 0]
    assert result.batch["loss"][1] == 0.0
    assert metrics(result)["loss"] == pytest.approx(float(result.batch["loss"][0]), abs=1e-6)


def test_micro_batches_do_not_change_the_step() -> None:
    seen = []
    for size in (None, 1, 3, 99):
        with alone(micro_batch_size=size) as group:
            group.init_model()
            seen.append([metrics(group.train_model(text_batch(5, 48, padded=True)))["loss"] for _ in range(2)])
    assert seen[1:] == [pytest.approx(seen[0], abs=1e-6)] * 3


def test_the_learning_rate_follows_its_schedule() -> None:
    schedule = LearningRate(1e-2, warmup_steps=2, decay="linear", decay_steps=2)
    with alone(optimizer=OptimizerConfig(learning_rate=schedule)) as group:
        group.init_model()
        seen = [metrics(group.train_model(text_batch(2, 16)))["learning_rate"] for _ in range(5)]
    assert seen == pytest.approx([5e-3, 1e-2, 1e-2, 5e-3, 0.0])


def test_uneven_and_empty_shards_on_two_replicas(pool: RankPool) -> None:
    with on(pool, 2, parallel=ParallelConfig(data=2)) as two, alone() as one:
        for group in (one, two):
            group.init_model()
        for rows in (5, 1, 2):
            apart, together = (group.train_model(text_batch(rows, 40, padded=True)) for group in (two, one))
            assert len(apart) == rows
            assert apart.batch["loss"].tolist() == pytest.approx(together.batch["loss"].tolist(), abs=2e-6)
            assert metrics(apart)["loss"] == pytest.approx(metrics(together)["loss"], abs=1e-6)
            assert metrics(apart)["tokens"] == metrics(together)["tokens"]


def test_uneven_rows_through_pipeline_and_tensor_ranks(pool: RankPool) -> None:
    with on(pool, 4, parallel=ParallelConfig(tensor=2, pipeline=2), micro_batch_size=2) as four, alone() as one:
        for group in (one, four):
            group.init_model()
        apart, together = (group.train_model(text_batch(5, 40, padded=True)) for group in (four, one))
        assert apart.batch["loss"].tolist() == pytest.approx(together.batch["loss"].tolist(), abs=2e-6)


def test_rows_of_any_length_with_sequence_and_context_parallel(pool: RankPool) -> None:
    layout = ParallelConfig(tensor=2, context=2, sequence_parallel=True)
    with on(pool, 4, parallel=layout) as four, alone() as one:
        for group in (one, four):
            group.init_model()
        apart, together = (group.train_model(text_batch(3, 37, padded=True)) for group in (four, one))
        assert apart.batch["loss"].tolist() == pytest.approx(together.batch["loss"].tolist(), abs=2e-6)


def test_a_bad_row_on_one_rank_is_an_error_on_all_and_harms_nothing(pool: RankPool) -> None:
    with on(pool, 2, parallel=ParallelConfig(data=2)) as group:
        group.init_model()
        before = group.gather_weights()
        bad = changed(text_batch(4, 16), row=3, position=7, token=256)
        with pytest.raises(BatchError, match=r"rank 1: row 1 of this rank's 2 has the token 256"):
            group.train_model(bad)
        after = group.gather_weights()
        assert all(torch.equal(after[0][name], weight) for name, weight in before[0].items())
        assert metrics(group.train_model(text_batch(4, 16)))["step"] == 1


def metrics_on_the_rank(worker: Any, batch: DataProto) -> dict[str, Any]:
    seen: dict[str, Any] = worker.train_model(batch).meta_info["metrics"]
    return seen


def test_metrics_are_of_the_global_batch_and_once_for_each_replica(pool: RankPool, trainer: Any) -> None:
    with on(pool, 2, parallel=ParallelConfig(data=2)) as group:
        group.init_model()
        seen = group.train_model(text_batch(3, 16)).meta_info["metrics"]
    assert all(len(values) == 2 and values[0] == values[1] for values in seen.values())
    inside = trainer.execute(metrics_on_the_rank, text_batch(3, 16))[0]
    assert inside.keys() == seen.keys()
    assert all(isinstance(value, int | float) for value in inside.values())
    assert inside["loss"] == pytest.approx(seen["loss"][0], abs=1e-6)


def test_nothing_to_predict(trainer: Any) -> None:
    with pytest.raises(BatchError, match="the global batch of 3 rows has nothing to predict"):
        trainer.train_model(text_batch(3, 1))


def break_weights(worker: Any) -> None:
    name, weight = next(iter(worker._built.module.named_parameters()))
    with torch.no_grad():
        weight[3] = float("nan")
    assert name


def test_a_loss_that_is_not_finite_is_raised_with_its_place() -> None:
    with alone(micro_batch_size=1) as group:
        group.init_model()
        group.execute(break_weights)
        with pytest.raises(
            NonFiniteLossError, match="step 1 was not done: the loss on rank 0 in micro-batch 1 is not finite"
        ):
            group.train_model(changed(text_batch(2, 16), row=1, position=4, token=3))


def test_a_step_whose_loss_is_not_finite_is_skipped_by_choice() -> None:
    with alone(on_non_finite="skip") as group:
        group.init_model()
        group.execute(break_weights)
        before = group.gather_weights()[0]
        seen = metrics(group.train_model(changed(text_batch(2, 16), row=1, position=4, token=3)))
        assert (seen["applied"], seen["step"]) == (0, 0)
        after = group.gather_weights()[0]
        assert all(torch.equal(after[name], weight) for name, weight in before.items() if "layers" in name)
        assert metrics(group.train_model(text_batch(2, 16)))["step"] == 1


def test_training_before_init_model() -> None:
    with (
        alone() as group,
        pytest.raises(NotInitialisedError, match="train_model on rank 0 needs the model; call init_model first"),
    ):
        group.train_model(text_batch(2, 16))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"model": "huge"}, ModelConfigError, "no preset is named 'huge'"),
        ({"micro_batch_size": 0}, ModelConfigError, "micro_batch_size=0 must be 1 or more"),
        ({"on_non_finite": "stop"}, ModelConfigError, "on_non_finite='stop' must be 'raise' or 'skip'"),
        (
            {"model": "tiny", "parallel": ParallelConfig(tensor=3)},
            LayoutError,
            "tensor=3 does not divide num_attention_heads=4",
        ),
        (
            {"parallel": ParallelConfig(tensor=2)},
            LayoutError,
            "1 ranks cannot be divided by tensor x pipeline x context",
        ),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(Exception, match=text) as caught:
        alone(**options)
    assert isinstance(caught.value.__cause__ or caught.value, error)


@pytest.mark.parametrize(
    ("ranks", "options", "error", "text"),
    [
        (2, {"parallel": ParallelConfig(tensor=2, pipeline=2)}, LayoutError, "2 ranks cannot be divided by"),
        (2, {"model": "llama-1b", "parallel": ParallelConfig(pipeline=3)}, LayoutError, "2 ranks cannot be divided by"),
        (5, {"model": "llama-1b", "parallel": ParallelConfig(pipeline=5)}, LayoutError, "pipeline=5 does not divide"),
        (2, {"model": "huge"}, ModelConfigError, "no preset is named 'huge'"),
    ],
)
def test_what_cannot_be_is_refused_before_any_process_starts(
    ranks: int, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        WorkerGroup([ranks], ClassWithInitArgs(ProbeTrainer, **options), backend=NothingStarts())


class NothingStarts:
    """A backend on which a group fails if it is asked to start anything."""

    name = "nothing"

    def start(self, *_: object) -> list[StartedRank]:
        raise AssertionError("a rank was to be started")

    def place(self, value: Any) -> Any:
        return value

    def call(self, *_: object) -> Any: ...

    def wait(self, *_: object) -> set[int]:
        return set()

    def fetch(self, *_: object) -> Any: ...

    def stop(self, *_: object) -> None: ...


def test_two_inline_ranks_are_refused() -> None:
    with pytest.raises(Exception, match="2 ranks of ProbeTrainer in one process"):
        WorkerGroup([2], ClassWithInitArgs(ProbeTrainer))


def test_two_layouts_in_one_process_are_refused() -> None:
    with alone():
        with pytest.raises(Exception, match="this process runs Megatron with tensor=1") as caught:
            alone(precision="bf16")
        assert isinstance(caught.value.__cause__ or caught.value, LayoutClashError)
    alone(precision="bf16").close()


def test_bf16_trains_too() -> None:
    with alone(precision="bf16", optimizer=OptimizerConfig(learning_rate=1e-3)) as group:
        assert group.init_model()[0]["device"] == "cpu gloo bf16"
        losses = [metrics(group.train_model(text_batch(4, 64)))["loss"] for _ in range(8)]
    assert losses[0] == pytest.approx(LOSS_OF_CHANCE, abs=0.15)
    assert losses[-1] < losses[0] - 1.0


def test_a_driver_does_not_import_megatron() -> None:
    code = """
import pickle, sys
import fanfold.megatron
from fanfold.megatron import MegatronTrainer, ParallelConfig
from fanfold.dispatch import specs_of
class Mine(fanfold.megatron.MegatronTrainer):
    pass
assert {"init_model", "train_model"} <= set(specs_of(Mine))
pickle.loads(pickle.dumps((MegatronTrainer, ParallelConfig(tensor=2))))
found = sorted(name for name in sys.modules if name.split(".")[0] == "megatron")
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
