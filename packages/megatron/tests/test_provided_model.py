"""A model that is not ours: trained, scored, kept, in more than one layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fanfold.megatron import ModelConfig, ModelConfigError, ParallelConfig
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer
from provided_models import nothing_of_the_kind, with_query_norms
from text import text_batch

if TYPE_CHECKING:
    from pathlib import Path

    from rank_pool import RankPool

MODEL = ModelConfig(hidden_size=64, ffn_hidden_size=128, max_sequence_length=64)


def group_on(pool: RankPool | str, layout: ParallelConfig, provider: Any = with_query_norms) -> Any:
    recipe = ClassWithInitArgs(ProbeTrainer, model=MODEL, parallel=layout, seed=4, model_provider=provider)
    return WorkerGroup([layout.world_size], recipe, backend=pool)


def losses(group: Any, *steps: int) -> list[float]:
    batches = (text_batch(4, 32, padded=True, first=4 * step) for step in steps)
    return [group.train_model(batch).meta_info["metrics"]["loss"][0] for batch in batches]


def test_it_trains_scores_and_is_kept_like_ours(pool: RankPool, tmp_path: Path) -> None:
    layout = ParallelConfig(tensor=2, data=2)
    with group_on("inline", ParallelConfig(data=1)) as group:
        group.init_model()
        group.save_checkpoint(str(tmp_path / "first"))  # what Megatron draws for it in other layouts is not ours to say
        alone = losses(group, 0, 1, 2, 3)
        for call in (group.state_digest, lambda: group.export_hf(str(tmp_path)), lambda: group.load_hf(str(tmp_path))):
            with pytest.raises(ModelConfigError, match="knows the Llama-like model's weights by their names"):
                call()
    with group_on(pool, layout) as group:
        group.init_model(checkpoint=str(tmp_path / "first"))
        # Adam's first step makes much of the last bits of small gradients.
        assert losses(group, 0, 1) == pytest.approx(alone[:2], abs=2e-5)
        group.save_checkpoint(str(tmp_path / "second"))
        scores = group.compute_log_prob(text_batch(3, 20)).batch["log_probs"]
    with group_on("inline", ParallelConfig(data=1)) as group:
        assert group.init_model(checkpoint=str(tmp_path / "second"))[0]["step"] == 2
        again = group.compute_log_prob(text_batch(3, 20)).batch["log_probs"]
        assert float((scores - again).abs().max()) < 1e-5
        assert losses(group, 2, 3) == pytest.approx(alone[2:], abs=2e-5)


def test_what_is_no_model_is_refused() -> None:
    with group_on("inline", ParallelConfig(data=1), nothing_of_the_kind) as group:
        with pytest.raises(ModelConfigError, match="must return a MegatronModule, as GPTModel is one; got dict"):
            group.init_model()
        with pytest.raises(ModelConfigError, match="checkpoint='a' or huggingface='b', not both"):
            group.init_model(checkpoint="a", huggingface="b")
