"""What Megatron's local layers lack: a norm for sequence parallelism, SDPA attention, and a head for values.

The first two, which otherwise need TransformerEngine, are handed to Megatron through its layer specs. T tokens, B rows,
H heads, G key and value heads, d head size; `h` hidden size; C context-parallel ranks.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn import functional

from megatron.core import parallel_state
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region


class Norm(torch.nn.RMSNorm):
    """RMS norm whose weight is marked, so that its gradient is summed over the ranks that share a sequence."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        # Megatron's own mark.
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010 parameters do not declare it


class ValueHead(torch.nn.Module):
    """One number at each position instead of logits; the same weight on all tensor-parallel ranks."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.sequence_parallel = config.sequence_parallel
        # Named as the weight of the layer that it stands for: Megatron looks for it there when it makes a checkpoint.
        self.weight = torch.nn.Parameter(torch.empty(1, config.hidden_size, dtype=config.params_dtype))
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010 as above

    def forward(self, hidden: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        """Return [T, B, 1] for hidden states [T, B, h], of which sequence parallel ranks have their part of T."""
        values = functional.linear(hidden, self.weight)
        if self.sequence_parallel:
            # Each rank computes the loss of the whole sequence: what comes back is cut, not summed.
            values = gather_from_sequence_parallel_region(values, tensor_parallel_output_grad=False)
        return values, None


class SdpaAttention(torch.nn.Module):
    """Causal attention by `scaled_dot_product_attention`: no matrix of T x T floats, and with it context parallelism.

    Rows must begin at position 0 and be padded at the end: the causal rule then hides the padding from real tokens.
    """

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self.scale = softmax_scale if softmax_scale is not None else 1 / math.sqrt(config.kv_channels)
        self.context_size = config.context_parallel_size
        self.dropout = config.attention_dropout
        # Megatron draws from the rank's own stream already where a block's sequence is divided.
        self.has_own_stream = not config.sequence_parallel

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Attend.

        Args:
            query: [T/C, B, H, d]
            key: [T/C, B, G, d]
            value: [T/C, B, G, d]

        Returns:
            [T/C, B, H * d]
        """
        allowed = None
        if self.context_size > 1:
            group = parallel_state.get_context_parallel_group()
            allowed = causal_mask_of_shard(query.shape[0], group.size(), group.rank(), query.device)
            key, value = (_SequenceGather.apply(part, group) for part in (key, value))
        repeats = query.shape[2] // key.shape[2]
        if repeats > 1:
            key, value = (part.repeat_interleave(repeats, dim=2) for part in (key, value))
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        dropout = self.dropout if self.training else 0.0
        with get_cuda_rng_tracker().fork() if dropout and self.has_own_stream else nullcontext():
            mixed = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=allowed, dropout_p=dropout, is_causal=allowed is None, scale=self.scale
            )
        return mixed.permute(2, 0, 1, 3).flatten(2)


def shard_positions(tokens: int, size: int, rank: int, device: torch.device) -> torch.Tensor:
    """Say which positions of a sequence one of `size` context ranks holds.

    Of 2 * size chunks, rank r has chunk r and chunk 2 * size - 1 - r: Megatron's zig-zag, which gives each rank the
    same share of the causal triangle.

    Returns:
        [tokens / size]
    """
    positions = torch.arange(tokens, device=device)
    if size == 1:
        return positions  # one rank holds them all, and their number may be odd
    chunks = positions.view(2 * size, -1)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def causal_mask_of_shard(shard_tokens: int, size: int, rank: int, device: torch.device) -> torch.Tensor:
    """Say which keys of the whole sequence each query of a shard sees: bool [T/C, T]."""
    tokens = shard_tokens * size
    return shard_positions(tokens, size, rank, device)[:, None] >= torch.arange(tokens, device=device)[None, :]


class _SequenceGather(torch.autograd.Function):
    """Gather the shards of a sequence in its natural order; backward, sum and give each rank its shard."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        shards = [torch.empty_like(shard) for _ in range(group.size())]
        torch.distributed.all_gather(shards, shard.contiguous(), group=group)
        whole = shard.new_empty(shard.shape[0] * group.size(), *shard.shape[1:])
        for rank, part in enumerate(shards):
            whole[shard_positions(whole.shape[0], group.size(), rank, shard.device)] = part
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.contiguous()
        torch.distributed.all_reduce(gradient, group=ctx.group)
        positions = shard_positions(gradient.shape[0], ctx.group.size(), ctx.group.rank(), gradient.device)
        return gradient[positions], None
