# ruff: noqa: INP001, T201  a script that prints
"""One process that trains the given sizes with Megatron-Core as its own examples do, and says its peak memory in MiB.

Of fanfold it uses the seam alone, without which Megatron-Core does not run on a CPU.
"""

from __future__ import annotations

import argparse
import resource
import warnings

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented there

warnings.simplefilter("ignore")

from fanfold.megatron.device import DevicePlan, megatron_device  # noqa: E402  # warnings first, below too
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    for name in ("hidden", "ffn", "layers", "heads", "rows", "tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    chosen = parser.parse_args()
    with megatron_device(DevicePlan("cpu", "gloo", "float32")):
        train(chosen)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def train(chosen: argparse.Namespace) -> None:
    """Make the model and do three steps."""
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(0, inference_rng_tracker=True, force_reset_rng=True)
    config = TransformerConfig(
        num_layers=chosen.layers,
        hidden_size=chosen.hidden,
        ffn_hidden_size=chosen.ffn,
        num_attention_heads=chosen.heads,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        use_cpu_initialization=True,
        finalize_model_grads_func=finalize_model_grads,
    )
    module = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=256,
        max_sequence_length=4096,
        position_embedding_type="rope",
    )
    model = DistributedDataParallel(config=config, ddp_config=DistributedDataParallelConfig(), module=module)
    optimizer = get_megatron_optimizer(config=OptimizerConfig(optimizer="adam", lr=1e-3), model_chunks=[model])
    tokens = torch.randint(256, (chosen.rows, chosen.tokens))
    places = torch.arange(chosen.tokens).expand_as(tokens)
    for _ in range(3):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=lambda _data, part: (part(tokens, places, None, labels=tokens), mean_loss),
            data_iterator=None,
            model=[model],
            num_microbatches=1,
            seq_length=chosen.tokens,
            micro_batch_size=chosen.rows,
            forward_only=False,
        )
        optimizer.step()


def mean_loss(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return what Megatron's schedule asks of a loss function."""
    return losses.mean(), {"loss": losses.detach().mean()}


if __name__ == "__main__":
    main()
