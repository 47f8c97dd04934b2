"""A hash of the weights that does not depend on the layout."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from fanfold.megatron.model import named_weights
from fanfold.megatron.weights import division_of

from megatron.core import parallel_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanfold.megatron.model import Built


def whole_weights(built: Built) -> Iterator[tuple[str, torch.Tensor]]:
    """Give out each weight of this pipeline stage, put together from the tensor-parallel ranks, on each of them."""
    group = parallel_state.get_tensor_model_parallel_group()
    for name, weight in named_weights(built.module):
        shards = [torch.empty_like(weight.data) for _ in range(group.size())]
        torch.distributed.all_gather(shards, weight.data.contiguous(), group=group)
        yield name, division_of(name).join(shards)


def state_digest(built: Built) -> str:
    """Hash names, shapes and bytes of all weights of the model; every rank gets the same."""
    mine = {name: _hash(weight) for name, weight in whole_weights(built)}
    group = parallel_state.get_pipeline_model_parallel_group()
    stages: list[dict[str, str]] = [{}] * group.size()
    torch.distributed.all_gather_object(stages, mine, group=group)
    together = {name: value for stage in stages for name, value in stage.items()}
    return hashlib.sha256(repr(sorted(together.items())).encode()).hexdigest()


def _hash(weight: torch.Tensor) -> str:
    content = weight.detach().cpu().contiguous()
    digest = hashlib.sha256(repr((str(content.dtype), tuple(content.shape))).encode())
    digest.update(content.view(torch.uint8).numpy().data)
    return digest.hexdigest()
