from __future__ import annotations

from typing import Any

import pytest
import torch
from fanfold.dataproto import DataProto
from fanfold.megatron import BatchError, CrossEntropy, ModelConfigError, ParallelConfig, PolicyGradient, TokenLoss
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from losses_of_users import SecondToken
from probe import ProbeTrainer
from text import text_batch


def test_the_clipped_objective_case_by_case() -> None:
    old = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0]])
    new = torch.log(torch.tensor([[1.0, 1.5, 1.5, 0.5, 0.5]]))
    columns = {"old_log_probs": old, "advantages": torch.tensor([[2.0, 2.0, -2.0, 2.0, -2.0]]), "entropy": old + 4.0}
    loss, seen = PolicyGradient(0.2, 0.3)(new, columns)
    assert seen["entropy"].flatten().tolist() == [4.0] * 5
    assert loss.flatten().tolist() == pytest.approx([-2.0, -2.6, 3.0, -1.0, 1.6])
    assert seen["clipped"].flatten().tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert seen["kl_to_old"].flatten().tolist() == pytest.approx((new.exp() - new - 1).flatten().tolist())


def test_the_gradient_of_an_unclipped_step_is_the_advantage() -> None:
    new = torch.zeros(1, 3, requires_grad=True)
    columns = {"old_log_probs": torch.zeros(1, 3), "advantages": torch.tensor([[1.0, -2.0, 0.5]])}
    (gradient,) = torch.autograd.grad(PolicyGradient(report_entropy=False)(new, columns)[0].sum(), new)
    assert gradient.flatten().tolist() == pytest.approx([-1.0, 2.0, -0.5])


def test_the_penalty_is_never_negative_and_zero_at_the_reference() -> None:
    log_probs = torch.linspace(-3, 3, 13)[None, :]
    columns = {"old_log_probs": log_probs, "advantages": torch.zeros(1, 13), "ref_log_probs": torch.zeros(1, 13)}
    loss, seen = PolicyGradient(kl_coefficient=0.5, report_entropy=False)(log_probs, columns)
    assert float(loss.min()) == 0.0 == float(loss[0, 6])
    assert torch.equal(seen["kl_to_reference"] * 0.5, loss)


def test_what_losses_read() -> None:
    assert CrossEntropy().columns == ()
    assert PolicyGradient().columns == ("old_log_probs", "advantages")
    assert PolicyGradient(kl_coefficient=0.1).columns == ("old_log_probs", "advantages", "ref_log_probs")
    assert all(isinstance(loss, TokenLoss) for loss in (CrossEntropy(), PolicyGradient(), SecondToken()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_low": 1.0},
        {"clip_high": -0.1},
        {"kl_coefficient": -1.0},
        {"entropy_coefficient": -1.0},
        {"temperature": 0.0},
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError, match=next(iter(wrong))):
        PolicyGradient(**wrong)


def with_columns(group: Any, rows: int) -> DataProto:
    batch = text_batch(rows, 24, padded=True)
    scores = group.compute_log_prob(batch).batch["log_probs"]
    advantages = torch.linspace(-1, 1, rows)[:, None].expand(rows, 24).contiguous()
    further = {"old_log_probs": scores, "ref_log_probs": scores - 0.1, "advantages": advantages}
    return batch.union(DataProto.from_dict(tensors=further))


LOSSES = {
    "penalty": PolicyGradient(kl_coefficient=0.1),
    "entropy": PolicyGradient(entropy_coefficient=0.3, temperature=0.8),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_policy_step_is_the_same_in_every_layout(pool: Any, name: str) -> None:
    seen = []
    layouts = (ParallelConfig(data=1), ParallelConfig(tensor=2, pipeline=2, data=1), ParallelConfig(context=2, data=2))
    for layout in layouts:
        recipe = ClassWithInitArgs(ProbeTrainer, parallel=layout, micro_batch_size=2)
        started: Any = WorkerGroup([layout.world_size], recipe, backend=pool)
        with started as group:
            group.init_model()
            batch = with_columns(group, 5)
            for _ in range(2):
                result = group.train_model(batch, loss=LOSSES[name])
            metrics = {name: values[0] for name, values in result.meta_info["metrics"].items()}
            seen.append((metrics, result.batch["loss"].tolist()))
    assert seen[0][0]["kl_to_old"] > 0
    for metrics, rows in seen[1:]:
        assert metrics == pytest.approx(seen[0][0], abs=3e-6)
        assert rows == pytest.approx(seen[0][1], abs=3e-6)


def test_the_entropy_is_that_of_the_scores_and_grows() -> None:
    started: Any = WorkerGroup([1], ClassWithInitArgs(ProbeTrainer))
    with started as group:
        group.init_model()
        for step in range(4):
            group.train_model(text_batch(8, 24, first=8 * step))
        batch = text_batch(4, 24)
        nothing = torch.zeros(4, 24)
        scores = group.compute_log_prob(batch, temperature=0.7).batch
        columns = {"advantages": nothing, "old_log_probs": scores["log_probs"]}
        batch = batch.union(DataProto.from_dict(tensors=columns))
        loss = PolicyGradient(entropy_coefficient=1.0, temperature=0.7)
        seen = [group.train_model(batch, loss=loss).meta_info["metrics"] for _ in range(5)]
        after = group.compute_log_prob(batch, temperature=0.7).batch["entropy"]
        watched = group.train_model(batch, loss=PolicyGradient(temperature=0.7)).meta_info["metrics"]["entropy"]
    entropies = [metrics["entropy"][0] for metrics in seen]
    assert entropies[0] == pytest.approx(float(scores["entropy"][:, 1:].mean()), abs=1e-5)
    assert watched == pytest.approx([float(after[:, 1:].mean())], abs=1e-5)  # without a coefficient too
    assert seen[0]["kl_to_old"][0] == pytest.approx(0.0, abs=1e-6)
    assert seen[0]["loss"][0] == pytest.approx(-entropies[0], abs=1e-6)
    assert entropies == sorted(entropies)


def test_a_loss_of_the_users_own() -> None:
    started: Any = WorkerGroup([1], ClassWithInitArgs(ProbeTrainer))
    with started as group:
        group.init_model()
        batch = text_batch(3, 16)
        log_probs = group.compute_log_prob(batch).batch["log_probs"][:, 1:]
        result = group.train_model(batch, loss=SecondToken())
        wanted = (log_probs.double() ** 2).mean()
        assert result.meta_info["metrics"]["loss"][0] == pytest.approx(float(wanted), rel=1e-5)
        assert result.meta_info["metrics"]["largest"][0] == pytest.approx(float(log_probs.mean()), rel=1e-5)


def test_a_column_that_the_loss_reads_and_the_batch_lacks() -> None:
    started: Any = WorkerGroup([1], ClassWithInitArgs(ProbeTrainer))
    with started as group:
        group.init_model()
        with pytest.raises(BatchError, match="the batch has no column 'old_log_probs'"):
            group.train_model(text_batch(2, 16), loss=PolicyGradient())
