"""Models of users' own; here because ranks in other processes import them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanfold.megatron import ModelConfig


def with_query_norms(model: ModelConfig, config: Any, /, *, pre_process: bool, post_process: bool) -> Any:
    """Return Megatron's own GPT from its own layer spec, with norms on queries and keys and learned positions."""
    from megatron.core.models.gpt import GPTModel  # noqa: PLC0415  # on the ranks alone
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: PLC0415  # as above

    config.normalization, config.qk_layernorm = "LayerNorm", True
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(qk_layernorm=True),
        vocab_size=model.vocab_size,
        max_sequence_length=model.max_sequence_length,
        pre_process=pre_process,
        post_process=post_process,
        position_embedding_type="learned_absolute",
    )


def nothing_of_the_kind(model: ModelConfig, _config: Any, /, *, pre_process: bool, post_process: bool) -> Any:
    return {"layers": model.num_layers, "first": pre_process, "last": post_process}


def with_state_beside_weights(model: ModelConfig, config: Any, /, *, pre_process: bool, post_process: bool) -> Any:
    """Return the Llama-like model with an attention that keeps a state, as TransformerEngine's do."""
    from fanfold.megatron import ParallelConfig  # noqa: PLC0415  # as above
    from fanfold.megatron.layers import SdpaAttention  # noqa: PLC0415  # as above
    from fanfold.megatron.model import language_model  # noqa: PLC0415  # as above

    class Stateful(SdpaAttention):
        def get_extra_state(self) -> bytes:
            return b"scales of fp8"

        def set_extra_state(self, state: bytes) -> None:
            assert state == b"scales of fp8"

    assert pre_process
    assert post_process
    return language_model(model, ParallelConfig(data=1), config, Stateful)
