"""Continuations: greedy ones against the plain model, draws against the probabilities, both in several layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import reference
import torch
from fanfold.dataproto import DataProto
from fanfold.megatron import BatchError, LayoutError, ModelConfig, ModelConfigError, ParallelConfig, Sampling
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer, whole
from text import text_batch

if TYPE_CHECKING:
    from rank_pool import RankPool

MODEL = ModelConfig(hidden_size=64, ffn_hidden_size=96, num_query_groups=2, max_sequence_length=40)


def group_on(pool: RankPool | str, layout: ParallelConfig) -> Any:
    recipe = ClassWithInitArgs(ProbeTrainer, model=MODEL, parallel=layout, seed=3)
    return WorkerGroup([layout.world_size], recipe, backend=pool)


def trained(group: Any) -> Any:
    group.init_model()
    for step in range(3):
        group.train_model(text_batch(8, 32, first=8 * step))
    return group


LAYOUTS = [
    ParallelConfig(tensor=2, data=1),
    ParallelConfig(data=2),
    ParallelConfig(tensor=2, data=2, sequence_parallel=True),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_greedy_is_the_plain_models_choice_in_every_layout(pool: RankPool, layout: ParallelConfig) -> None:
    with group_on(pool, layout) as made:
        group = trained(made)
        prompts = text_batch(3, 20, padded=True)
        result = group.generate(prompts, Sampling(max_new_tokens=6, temperature=0))
        weights = whole(layout, group.gather_weights())
    assert prompts.batch is not None
    for row in range(3):
        ids = prompts.batch["input_ids"][row][prompts.batch["attention_mask"][row].bool()]
        for token in result.batch["responses"][row]:
            assert int(reference.logits(weights, MODEL, ids)[-1].argmax()) == int(token)
            ids = torch.cat([ids, token[None]])
    assert result.batch["response_mask"].tolist() == [[1] * 6] * 3


@pytest.mark.parametrize("layout", [ParallelConfig(data=1), *LAYOUTS], ids=str)
def test_log_probs_are_those_of_the_whole_row(pool: RankPool, layout: ParallelConfig) -> None:
    with group_on(pool, layout) as made:
        group = trained(made)
        prompts = text_batch(5, 16)
        result = group.generate(prompts, Sampling(max_new_tokens=8, temperature=0.8, top_p=0.9, seed=5))
        again = group.generate(prompts, Sampling(max_new_tokens=8, temperature=0.8, top_p=0.9, seed=5))
        other = group.generate(prompts, Sampling(max_new_tokens=8, temperature=0.8, top_p=0.9, seed=6))
        assert prompts.batch is not None
        ids = torch.cat([prompts.batch["input_ids"], result.batch["responses"]], dim=1)
        rows = DataProto.from_dict(tensors={"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        scores = group.compute_log_prob(rows, temperature=0.8).batch["log_probs"][:, 16:]
    assert float((scores - result.batch["response_log_probs"]).abs().max()) < 1e-5
    assert torch.equal(again.batch["responses"], result.batch["responses"])
    assert not torch.equal(other.batch["responses"], result.batch["responses"])


def test_draws_are_the_rows_own_whatever_the_layout(pool: RankPool) -> None:
    sampling = Sampling(max_new_tokens=8, temperature=0.9, top_p=0.95, seed=7, stop_tokens=(32,))
    prompts, seen, subset = text_batch(6, 16, padded=True), [], None
    for layout in (ParallelConfig(data=1), *LAYOUTS):
        with group_on(pool, layout) as made:
            group = trained(made)
            seen.append(group.generate(prompts, sampling).batch)
            if layout.data == 2 and subset is None:
                numbers = torch.tensor([4, 1])
                some = prompts[numbers.tolist()].union(DataProto.from_dict(tensors={"seeds": numbers}))
                subset = group.generate(some, sampling).batch
    for other in seen[1:]:
        for name in ("responses", "response_mask", "input_ids", "attention_mask", "position_ids", "loss_mask"):
            assert torch.equal(other[name], seen[0][name]), name
        assert float((other["response_log_probs"] - seen[0]["response_log_probs"]).abs().max()) < 1e-5
    assert subset is not None
    assert torch.equal(subset["responses"], seen[0]["responses"][[4, 1]])


def test_continuations_are_rows_that_can_be_trained_on() -> None:
    with group_on("inline", ParallelConfig(data=1)) as group:
        group.init_model()
        prompts = text_batch(3, 12, padded=True)  # whole, padded at the left, padded at the right
        made = group.generate(prompts, Sampling(max_new_tokens=4, seed=1))
        assert prompts.batch is not None
        lengths = prompts.batch["attention_mask"].sum(1)
        assert made.batch["attention_mask"].sum(1).tolist() == (lengths + 4).tolist()
        for row, start in enumerate((0, 12 - int(lengths[1]), 0)):
            length = int(lengths[row])
            ids = made.batch["input_ids"][row, start : start + length + 4]
            prompt = prompts.batch["input_ids"][row, start : start + length]
            assert torch.equal(ids, torch.cat([prompt, made.batch["responses"][row]]))
            where = made.batch["loss_mask"][row].nonzero().flatten().tolist()
            assert where == list(range(start + length, start + length + 4))
        scores = group.compute_log_prob(made).batch["log_probs"]
        again = scores[made.batch["loss_mask"].bool()].view(3, 4)
        assert float((again - made.batch["response_log_probs"]).abs().max()) < 1e-5
        assert group.train_model(made).batch["targets"].tolist() == [4, 4, 4]


def test_micro_batches_bound_what_is_computed_at_once() -> None:
    seen = []
    for size in (None, 2):
        recipe = ClassWithInitArgs(ProbeTrainer, model=MODEL, micro_batch_size=size)
        started: Any = WorkerGroup([1], recipe)
        with started as group:
            group.init_model()
            seen.append(group.generate(text_batch(5, 16, padded=True), Sampling(max_new_tokens=5)).batch["responses"])
    assert torch.equal(seen[0], seen[1])


def test_noise_never_leaves_the_tokens_that_are_kept() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0, float("-inf")]]).expand(2, 4)
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert Sampling(1).draw(logits, ends)[0].tolist() == [0, 2]
    assert Sampling(1, top_p=0.5).draw(logits, ends)[0].tolist() == [1, 1]


def test_rows_end_with_a_stop_token_and_empty_shards_take_part(pool: RankPool) -> None:
    with group_on(pool, ParallelConfig(data=2)) as made:
        group = trained(made)
        free = group.generate(text_batch(1, 16), Sampling(max_new_tokens=6, temperature=0)).batch["responses"][0]
        stop = int(free[2])
        first = free.tolist().index(stop)
        ended = group.generate(text_batch(1, 16), Sampling(max_new_tokens=6, temperature=0, stop_tokens=(stop,)))
    assert ended.batch["responses"][0].tolist() == free[: first + 1].tolist() + [0] * (5 - first)
    assert ended.batch["response_mask"][0].tolist() == [1] * (first + 1) + [0] * (5 - first)


def test_draws_follow_the_probabilities_that_top_p_leaves() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(40_000, 4)
    noise = Sampling(1, seed=1).noise(range(40_000)).squeeze(1)
    assert float(noise.min()) >= 0.0
    assert float(noise.max()) < 1.0
    tokens, log_probs = Sampling(1, top_p=0.7).draw(logits, noise)
    shares = torch.bincount(tokens, minlength=4) / len(tokens)
    assert shares.tolist() == pytest.approx([0.625, 0.375, 0.0, 0.0], abs=0.01)
    assert log_probs[tokens == 1][0] == pytest.approx(torch.tensor(0.3).log().item())
    tokens, _ = Sampling(1, top_p=1e-6).draw(logits, noise)
    assert set(tokens.tolist()) == {0}
    tokens, _ = Sampling(1, temperature=0.5).draw(logits, noise)
    squares = [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]
    assert (torch.bincount(tokens, minlength=4) / len(tokens)).tolist() == pytest.approx(squares, abs=0.01)


def test_layouts_and_rows_that_are_refused(pool: RankPool) -> None:
    with group_on(pool, ParallelConfig(pipeline=2, data=1)) as group:
        group.init_model()
        with pytest.raises(LayoutError, match="tensor and data parallel ranks; the layout is tensor=1 pipeline=2"):
            group.generate(text_batch(1, 16), Sampling(max_new_tokens=2))
    with group_on("inline", ParallelConfig(data=1)) as group:
        group.init_model()
        with pytest.raises(BatchError, match="has 37 tokens, more than the model's max_sequence_length=36"):
            group.generate(text_batch(1, 37), Sampling(max_new_tokens=4))
        wrong = text_batch(2, 8).union(DataProto.from_dict(tensors={"seeds": torch.zeros(2)}))
        with pytest.raises(BatchError, match=r"column 'seeds' must be one whole number .* got \(2,\) of float32"):
            group.generate(wrong, Sampling(max_new_tokens=4))


@pytest.mark.parametrize("wrong", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError, match=next(iter(wrong))):
        Sampling(**{"max_new_tokens": 1, **wrong})
