"""What a real model attends with, and what that holds in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from fanfold.megatron import ModelConfig, ParallelConfig
from fanfold.worker import ClassWithInitArgs, WorkerGroup
from probe import ProbeTrainer
from provided_models import with_state_beside_weights
from text import text_batch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from pathlib import Path

    from rank_pool import RankPool

MODEL = ModelConfig(hidden_size=32, ffn_hidden_size=32, num_attention_heads=8, vocab_size=256)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no type there
    """Sees the number of elements of the largest tensor that an operation makes."""

    size = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else (result,):
            if isinstance(each, torch.Tensor):
                self.size = max(self.size, each.numel())
        return result


def alone(**options: Any) -> Any:
    return WorkerGroup([1], ClassWithInitArgs(ProbeTrainer, **{"model": MODEL, **options}))


def names_of_core_attention(worker: Any) -> list[str]:
    return [type(layer.self_attention.core_attention).__name__ for layer in worker._built.module.decoder.layers]


def test_without_transformer_engine_it_is_sdpa() -> None:
    with alone() as group:
        group.init_model()
        assert group.execute(names_of_core_attention) == [["SdpaAttention"] * MODEL.num_layers]


def test_ordered_where_it_cannot_be_it_is_refused_at_the_start() -> None:
    with pytest.raises(Exception, match="attention='transformer_engine', and it needs cuda nccl bf16"):
        alone(attention="transformer_engine")


def test_a_step_holds_no_matrix_of_all_pairs_of_tokens() -> None:
    tokens = 512
    with alone() as group:
        group.init_model()
        with Largest() as seen:  # type: ignore[no-untyped-call]  # as above
            group.train_model(text_batch(1, tokens))
    assert seen.size >= tokens * 256  # the logits
    assert seen.size < MODEL.num_attention_heads * tokens * tokens / 4


def test_checkpoints_go_between_kinds_of_attention(pool: RankPool, tmp_path: Path) -> None:
    batch = text_batch(4, 24, padded=True)
    providers = (with_state_beside_weights, None)
    for first, second in (providers, providers[::-1]):
        path = str(tmp_path / str(first))
        with alone(model_provider=first) as group:
            group.init_model()
            group.train_model(batch)
            group.save_checkpoint(path)
            wanted = group.compute_log_prob(batch).batch["log_probs"]
        layout = ParallelConfig(tensor=2, data=1)
        recipe = ClassWithInitArgs(ProbeTrainer, model=MODEL, parallel=layout, model_provider=second, seed=6)
        started: Any = WorkerGroup([2], recipe, backend=pool)
        with started as group:
            group.init_model(checkpoint=path)
            got = group.compute_log_prob(batch).batch["log_probs"]
        assert float((got - wanted).abs().max()) < 1e-5
