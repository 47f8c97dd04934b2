"""Value models: what they say against the plain model, in every layout; how they learn; what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import reference
import torch
from fanfold.dataproto import DataProto
from fanfold.megatron import (
    CrossEntropy,
    HeadError,
    ModelConfig,
    ModelConfigError,
    OptimizerConfig,
    ParallelConfig,
    PolicyGradient,
    Sampling,
    ValueLoss,
)
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer, whole
from text import text_batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rank_pool import RankPool

MODEL = ModelConfig(hidden_size=64, ffn_hidden_size=96, num_query_groups=2, head="value")
LAYOUTS = {
    "alone": ParallelConfig(data=1),
    "tp2-sp": ParallelConfig(tensor=2, data=1, sequence_parallel=True),
    "tp2-pp2": ParallelConfig(tensor=2, pipeline=2, data=1),
    "cp2-dp2": ParallelConfig(context=2, data=2),
}


def group_on(pool: RankPool | str, layout: ParallelConfig, **options: Any) -> Any:
    recipe = ClassWithInitArgs(ProbeTrainer, **{"model": MODEL, "parallel": layout, "seed": 3, **options})
    return WorkerGroup([layout.world_size], recipe, backend=pool)


def with_returns(group: Any, rows: int) -> DataProto:
    batch = text_batch(rows, 24, padded=True)
    assert batch.batch is not None
    returns = torch.sin(batch.batch["input_ids"].float())  # a number that can be told from the token
    old = group.compute_values(batch).batch["values"]
    return batch.union(DataProto.from_dict(tensors={"returns": returns, "old_values": old}))


def numbers(result: DataProto) -> dict[str, float]:
    return {name: values[0] for name, values in result.meta_info["metrics"].items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_and_a_step_are_those_of_the_plain_model(pool: RankPool, name: str) -> None:
    layout = LAYOUTS[name]
    with group_on(pool, layout, micro_batch_size=2) as group:
        group.init_model()
        batch = with_returns(group, 5)
        metrics = numbers(group.train_model(batch, loss=ValueLoss(clip=0.05)))
        weights = whole(layout, group.gather_weights())
        values = group.compute_values(batch).batch["values"]
        digest = group.state_digest()[0]
    wanted = torch.zeros(5, 24, dtype=torch.float64)
    assert batch.batch is not None
    for row in range(5):
        places = batch.batch["attention_mask"][row].nonzero().flatten()
        hidden = reference.hidden(weights, MODEL, batch.batch["input_ids"][row, places])
        wanted[row, places[1:]] = (hidden @ weights["value_head.weight"].double().T).squeeze(1)[:-1]
    assert float((values - wanted).abs().max()) < 1e-5
    assert len(digest) == 64
    with group_on("inline", LAYOUTS["alone"]) as group:
        group.init_model()
        alone = numbers(group.train_model(with_returns(group, 5), loss=ValueLoss(clip=0.05)))
    assert metrics == pytest.approx(alone, rel=1e-5, abs=1e-6)


def test_a_critic_learns() -> None:
    with group_on("inline", LAYOUTS["alone"], optimizer=OptimizerConfig(learning_rate=3e-3)) as group:
        group.init_model()
        batch = with_returns(group, 8)
        losses = [group.train_model(batch, loss=ValueLoss()).meta_info["metrics"]["loss"][0] for _ in range(30)]
    assert losses[-1] < 0.6 * losses[0]


def test_the_clipped_loss_case_by_case() -> None:
    values = torch.tensor([[0.0, 1.0, 1.0, -1.0]])
    columns = {"returns": torch.tensor([[1.0, 1.0, 2.0, 2.0]]), "old_values": torch.zeros(1, 4)}
    loss, seen = ValueLoss(clip=0.5)(values, columns)
    assert loss.tolist() == [[0.5, 0.125, 1.125, 4.5]]
    assert seen["clipped"].tolist() == [[0.0, 1.0, 1.0, 0.0]]
    assert ValueLoss()(values, columns)[0].tolist() == [[0.5, 0.0, 0.5, 4.5]]
    assert ValueLoss().columns == ("returns",)
    with pytest.raises(ModelConfigError, match="clip=0 must be above 0, or None"):
        ValueLoss(clip=0)


def test_each_kind_of_model_refuses_what_the_other_does() -> None:
    with group_on("inline", LAYOUTS["alone"]) as group:
        group.init_model()
        batch = text_batch(2, 16)
        calls: list[Callable[[], object]] = [
            lambda: group.compute_log_prob(batch),
            lambda: group.generate(batch, Sampling(2)),
            lambda: group.train_model(batch),
            lambda: group.train_model(batch, loss=CrossEntropy()),
            lambda: group.train_model(batch, loss=PolicyGradient()),
        ]
        for call in calls:
            with pytest.raises(HeadError, match="needs a language model, and this is a value model"):
                call()
    with group_on("inline", LAYOUTS["alone"], model=ModelConfig()) as group:
        group.init_model()
        calls = [lambda: group.compute_values(batch), lambda: group.train_model(batch, loss=ValueLoss())]
        for call in calls:
            with pytest.raises(HeadError, match="needs a value model, and this is a language model"):
                call()
    with pytest.raises(ModelConfigError, match="head='critic' must be 'language' or 'value'"):
        ModelConfig(head="critic")  # type: ignore[arg-type]


def test_critics_are_kept_and_exchanged(tmp_path: Path) -> None:
    with group_on("inline", LAYOUTS["alone"], model=ModelConfig()) as actor:
        actor.init_model()
        actor.train_model(text_batch(4, 16))
        actor.export_hf(str(tmp_path / "actor"))
        embedding = actor.collect_weights(1 << 20)[0]["model.embed_tokens.weight"]
    critic_config = ModelConfig(head="value")
    with group_on("inline", LAYOUTS["alone"], model=critic_config) as critic:
        critic.init_model()
        before = critic.collect_weights(1 << 20)[0]
        critic.load_hf(str(tmp_path / "actor"))  # a critic starts from a language model, with a head of its own
        weights = critic.collect_weights(1 << 20)[0]
        assert torch.equal(weights["model.embed_tokens.weight"], embedding)
        assert torch.equal(weights["score.weight"], before["score.weight"])
        batch = with_returns(critic, 4)
        critic.train_model(batch, loss=ValueLoss())
        digest, values = critic.state_digest(), critic.compute_values(batch).batch["values"]
        critic.save_checkpoint(str(tmp_path / "critic"))
        critic.export_hf(str(tmp_path / "exported"))
    with group_on("inline", LAYOUTS["alone"], model=critic_config, seed=8) as critic:
        critic.init_model()
        critic.load_checkpoint(str(tmp_path / "critic"))
        assert critic.state_digest() == digest
        critic.init_model()
        critic.load_hf(str(tmp_path / "exported"))
        assert critic.state_digest() == digest
        assert torch.equal(critic.compute_values(batch).batch["values"], values)
