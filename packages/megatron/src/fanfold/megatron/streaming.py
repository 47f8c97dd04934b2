"""Whole weights out of a divided model, a bucket at a time, on every rank. P tensor-parallel ranks."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from fanfold.megatron.model import named_weights
from fanfold.megatron.weights import division_of, stage_of, weight_shapes

from megatron.core import parallel_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fanfold.megatron.config import ModelConfig
    from fanfold.megatron.model import Built

Sizes = list[tuple[str, tuple[int, ...]]]


def whole_weights(built: Built, model: ModelConfig, bucket_bytes: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Give out all weights of the undivided model in one order on all ranks; all ranks must take all of them.

    Args:
        built: This rank's part.
        model: The whole model.
        bucket_bytes: About how much is collected at once; a weight that is larger is a bucket by itself.
    """
    mine = dict(named_weights(built.module))
    dtype = next(iter(mine.values())).dtype
    element = torch.empty(0, dtype=dtype).element_size()
    for stage, bucket in _buckets(model, built.parallel.pipeline, bucket_bytes // element):
        whole = torch.empty(sum(_count(shape) for _, shape in bucket), dtype=dtype, device=built.device)
        if stage == parallel_state.get_pipeline_model_parallel_rank():
            _join(whole, bucket, [mine[name].data for name, _ in bucket])
        ranks = torch.distributed.get_process_group_ranks(parallel_state.get_pipeline_model_parallel_group())
        torch.distributed.broadcast(whole, ranks[stage], group=parallel_state.get_pipeline_model_parallel_group())
        yield from _apart(whole, bucket)


def state_digest(built: Built, model: ModelConfig) -> str:
    """Hash names, shapes and bytes of all weights of the model; every rank gets the same."""
    digest = hashlib.sha256()
    for name, weight in whole_weights(built, model, bucket_bytes=1 << 26):
        digest.update(repr((name, str(weight.dtype), tuple(weight.shape))).encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _buckets(model: ModelConfig, stages: int, elements: int) -> Iterator[tuple[int, Sizes]]:
    bucket: Sizes = []
    held_by = 0
    for name, shape in weight_shapes(model).items():
        stage = stage_of(name, model, stages)
        if bucket and (stage != held_by or sum(_count(one) for _, one in bucket) + _count(shape) > elements):
            yield held_by, bucket
            bucket = []
        held_by = stage
        bucket.append((name, shape))
    yield held_by, bucket


def _join(whole: torch.Tensor, bucket: Sizes, shards: Iterable[torch.Tensor]) -> None:
    """Collect the shards of the tensor-parallel ranks, and put the whole weights into one flat tensor."""
    group = parallel_state.get_tensor_model_parallel_group()
    mine = list(shards)
    flat = torch.cat([shard.reshape(-1) for shard in mine])
    everyone = [torch.empty_like(flat) for _ in range(group.size())]
    torch.distributed.all_gather(everyone, flat, group=group)
    sizes = [shard.numel() for shard in mine]
    by_weight = zip(*(torch.split(one, sizes) for one in everyone), strict=True)
    joined = [
        division_of(name).join([part.view(shard.shape) for part in parts]).reshape(-1)
        for (name, _), shard, parts in zip(bucket, mine, by_weight, strict=True)
    ]
    torch.cat(joined, out=whole)


def _apart(whole: torch.Tensor, bucket: Sizes) -> Iterator[tuple[str, torch.Tensor]]:
    flat = torch.split(whole, [_count(shape) for _, shape in bucket])
    for part, (name, shape) in zip(flat, bucket, strict=True):
        yield name, part.view(shape)


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
