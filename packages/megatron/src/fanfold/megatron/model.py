"""From frozen configs to Megatron's model, data-parallel wrapper and optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from fanfold.megatron import randomness
from fanfold.megatron.device import plan_attention, tensor_device
from fanfold.megatron.errors import ModelConfigError
from fanfold.megatron.layers import Norm, SdpaAttention, ValueHead
from fanfold.megatron.parallel import accepted
from fanfold.megatron.weights import EMBEDDING, OUTPUT, VALUE, division_of, initial_weight, whole_model_name

from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.extensions import transformer_engine
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt import GPTModel
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanfold.megatron.config import ModelConfig, ModelProvider, OptimizerConfig
    from fanfold.megatron.device import DevicePlan
    from fanfold.megatron.topology import ParallelConfig


@dataclass(frozen=True)
class Blueprint:
    """What is built on every rank.

    Attributes:
        model: The sizes.
        optimizer: Adam's settings.
        seed: Seed of the initial weights.
        attention: `auto`, `sdpa` or `transformer_engine`.
        provider: What makes the model instead of `language_model`, or None.
    """

    model: ModelConfig
    optimizer: OptimizerConfig
    seed: int
    attention: str = "auto"
    provider: ModelProvider | None = None


@dataclass(frozen=True)
class Built:
    """One rank's part of a model that can be trained.

    Attributes:
        parallel: The layout.
        device: Where this rank's tensors live.
        module: The model itself, without wrappers.
        wrapped: What a forward pass calls: the model within its number-type and data-parallel wrappers.
        optimizer: Megatron's optimizer over the model's weights.
        config: Megatron's own config of the model.
        head: `language` or `value`.
        seed: Seed of the model.
        random: The states of the random numbers that training draws.
    """

    parallel: ParallelConfig
    device: torch.device
    module: Any
    wrapped: Any
    optimizer: Any
    config: TransformerConfig
    head: str
    seed: int
    random: dict[str, torch.Tensor] = field(default_factory=dict)

    def draw_anew(self, step: int) -> None:
        """Start the random states from the seed, as after so many steps of another run."""
        here = self.parallel.coordinates(torch.distributed.get_rank())
        self.random.update(randomness.seeded(self.seed, here, self.device, step))


def build(blueprint: Blueprint, parallel: ParallelConfig, plan: DevicePlan) -> Built:
    """Make this rank's part of a randomly initialised model, and its optimizer.

    The Llama-like model is the same in every layout; a provided one is what its provider draws.
    """
    model, optimizer = blueprint.model, blueprint.optimizer
    config = transformer_config(model, parallel, plan)
    if blueprint.provider is None:
        module = language_model(model, parallel, config, _core_attention(plan, blueprint.attention))
        initialise(module, model, blueprint.seed)
    else:
        module = _provided(blueprint, blueprint.provider, parallel, config)
    if plan.kind == "cuda":
        module.cuda(torch.cuda.current_device())
    wrapped = _wrap(module, config, plan, optimizer)
    made = _optimizer(wrapped, plan, optimizer)
    device = tensor_device(plan)
    built = Built(parallel, device, module, wrapped, made, config, model.head, blueprint.seed)
    built.draw_anew(0)
    return built


def release(built: Built) -> None:
    """Let go of a model, which lies in circles that Python's garbage collector does not see into.

    Hooks on the nodes of autograd hold Megatron's wrapper, which holds those nodes, and through its config the
    optimizer, whose shards of weights hold them too. Memory and the threads of process groups would stay for ever.
    """
    getattr(built.wrapped, "grad_accs", []).clear()
    built.config.grad_scale_func = built.config.no_sync_func = built.config.finalize_model_grads_func = None


def _provided(
    blueprint: Blueprint, provider: ModelProvider, parallel: ParallelConfig, config: TransformerConfig
) -> Any:
    config.perform_initialization = True
    stage = parallel_state.get_pipeline_model_parallel_rank()
    with torch.random.fork_rng(devices=[]):
        # All replicas must draw the same; the stages, which draw different weights, must not (the step is Megatron's).
        torch.manual_seed(blueprint.seed + 100 * stage)
        module = provider(blueprint.model, config, pre_process=stage == 0, post_process=stage == parallel.pipeline - 1)
    if not isinstance(module, MegatronModule):
        raise ModelConfigError(
            f"model_provider {provider!r} must return a MegatronModule, as GPTModel is one; got {type(module).__name__}"
        )
    return module


def transformer_config(model: ModelConfig, parallel: ParallelConfig, plan: DevicePlan) -> TransformerConfig:
    """Say to Megatron what the model, the layout and the device are."""
    return TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.query_groups,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_epsilon,
        activation_func=torch.nn.functional.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        # Without TransformerEngine and Apex there is nothing to fuse with, and the local norm refuses to persist.
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        # The weights are drawn by name (weights.py): Megatron's own way depends on the pipeline layout.
        perform_initialization=False,
        use_cpu_initialization=plan.kind == "cpu",
        params_dtype=plan.dtype,
        bf16=plan.precision == "bf16",
        pipeline_dtype=plan.dtype,
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        sequence_parallel=parallel.sequence_parallel and parallel.tensor > 1,
        # The loss comes divided by the targets of the global batch: gradients are summed, not averaged.
        calculate_per_token_loss=True,
    )


def _core_attention(plan: DevicePlan, request: str) -> type:
    if plan_attention(plan, request=request, installed=transformer_engine.HAVE_TE) == "sdpa":
        return SdpaAttention
    chosen: type = transformer_engine.TEDotProductAttention
    return chosen


def language_model(
    model: ModelConfig, parallel: ParallelConfig, config: TransformerConfig, core_attention: type
) -> GPTModel:
    """Make this stage's part of the model; the one place that names the class, which newer versions replace."""
    stage = parallel_state.get_pipeline_model_parallel_rank()
    last = stage == parallel.pipeline - 1
    module = GPTModel(
        config=config,
        transformer_layer_spec=_block(model.num_layers // parallel.pipeline, model.ffn_hidden_size, core_attention),
        vocab_size=model.vocab_size,
        max_sequence_length=model.max_sequence_length,
        pre_process=stage == 0,
        post_process=last,
        share_embeddings_and_output_weights=model.share_embeddings and model.head == "language",
        position_embedding_type="rope",
        rotary_base=model.rotary_base,
    )
    if last and model.head == "value":
        module.output_layer = ValueHead(config)
    return module


def initialise(module: GPTModel, model: ModelConfig, seed: int) -> None:
    """Give each weight its part of the whole model's initial weight, and Megatron's marks of how it is divided."""
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in named_weights(module):
        division = division_of(name)
        if division.dimension is not None and not getattr(parameter, "tensor_model_parallel", False):
            # Older versions leave it to their own initialisation. Without the mark the gradient norm would count this
            # part once, as if the other ranks had the same.
            tensor_parallel.set_tensor_model_parallel_attributes(parameter, True, division.dimension, division.pieces)
        whole = initial_weight(name, division.whole_shape(parameter.shape, ranks), model, seed)
        with torch.no_grad():
            parameter.copy_(division.shard(whole, ranks, rank))


def set_weights(built: Built, whole_weight: Callable[[str], torch.Tensor | None]) -> None:
    """Take this rank's part of each whole weight, given by name, and start the optimizer anew; None stays as it is."""
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()
    for name, parameter in named_weights(built.module):
        source = EMBEDDING if name == OUTPUT and built.module.share_embeddings_and_output_weights else name
        whole = whole_weight(source)
        if whole is not None:
            with torch.no_grad():
                parameter.copy_(division_of(name).shard(whole, ranks, rank))
    built.optimizer.reload_model_params()
    for part in getattr(built.optimizer, "chained_optimizers", [built.optimizer]):
        _prepare_moments(part.optimizer)


def named_weights(module: GPTModel) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Name each weight of this rank as the undivided model names it."""
    layers = module.decoder.layers
    first_layer = layers[0].layer_number - 1 if len(layers) else 0
    values = isinstance(getattr(module, "output_layer", None), ValueHead)
    for name, parameter in module.named_parameters():
        yield VALUE if values and name == OUTPUT else whole_model_name(name, first_layer), parameter


def set_learning_rate(built: Built, learning_rate: float) -> None:
    """Set what the next optimizer step uses."""
    for group in built.optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_mult", 1.0)


def _block(layers: int, ffn_hidden_size: int, core_attention: type) -> TransformerBlockSubmodules:
    layer = ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=Norm,
            self_attention=ModuleSpec(
                module=SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=SelfAttentionSubmodules(
                    linear_qkv=ColumnParallelLinear,
                    core_attention=core_attention,
                    linear_proj=RowParallelLinear,
                    q_layernorm=IdentityOp,
                    k_layernorm=IdentityOp,
                ),
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=Norm,
            mlp=ModuleSpec(
                module=MLP,
                params=accepted(MLP, ffn_hidden_size=ffn_hidden_size),
                submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
            ),
            mlp_bda=get_bias_dropout_add,
        ),
    )
    return TransformerBlockSubmodules(layer_specs=[layer] * layers, layer_norm=Norm)


def _wrap(module: GPTModel, config: TransformerConfig, plan: DevicePlan, optimizer: OptimizerConfig) -> Any:
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=plan.precision == "bf16",
        use_distributed_optimizer=optimizer.distributed,
        overlap_grad_reduce=optimizer.overlap_gradients,
    )
    inner = Float16Module(config, module) if plan.precision == "bf16" else module
    wrapped = DistributedDataParallel(config=config, ddp_config=settings, module=inner)
    config.finalize_model_grads_func = _finalize
    if optimizer.overlap_gradients:
        config.no_sync_func = wrapped.no_sync  # gradients are summed over replicas with the last micro-batch alone
    return wrapped


def _finalize(chunks: list[Any], _num_tokens: Any = None, **keywords: Any) -> None:
    # The loss is divided by the targets of the global batch beforehand: Megatron is not told a number to divide by.
    finalize_model_grads(chunks, None, **keywords)


def _optimizer(wrapped: Any, plan: DevicePlan, optimizer: OptimizerConfig) -> Any:
    settings = MegatronOptimizerConfig(
        optimizer="adam",
        lr=optimizer.schedule.at(1),
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_eps=optimizer.epsilon,
        clip_grad=optimizer.clip_grad,
        bf16=plan.precision == "bf16",
        params_dtype=plan.dtype,
        use_distributed_optimizer=optimizer.distributed,
    )
    made = get_megatron_optimizer(
        config=settings, model_chunks=[wrapped], **accepted(get_megatron_optimizer, use_gloo_process_groups=False)
    )
    wrapped.config.grad_scale_func = made.scale_loss
    for optimizer_part in getattr(made, "chained_optimizers", [made]):
        _prepare_moments(optimizer_part.optimizer)
    return made


def _prepare_moments(adam: Any) -> None:
    # With torch's Adam, Megatron cannot save an optimizer that has made no step yet.
    if isinstance(adam, torch.optim.Adam | torch.optim.AdamW):
        for group in adam.param_groups:
            for weight in group["params"]:
                moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                adam.state[weight] = {"step": torch.zeros(()), **moments}
