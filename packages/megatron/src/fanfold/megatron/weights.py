"""How the weights of a Llama-like model are named, divided over tensor-parallel ranks, and drawn at the start.

A weight is known by its name in the undivided model, whatever rank holds a part of it, and is drawn from its name and
the seed alone: every layout starts from the same model. P tensor-parallel ranks.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from fanfold.megatron.errors import ModelConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanfold.megatron.config import ModelConfig

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
VALUE = "value_head.weight"
_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Division:
    """Along which dimension a weight is divided over the tensor-parallel ranks.

    Attributes:
        dimension: The dimension, or None where every rank has the whole.
        pieces: How many blocks are each divided by themselves: gate and up of a SwiGLU lie in one matrix.
    """

    dimension: int | None = None
    pieces: int = 1

    def whole_shape(self, shard: Sequence[int], ranks: int) -> tuple[int, ...]:
        """Return the shape of the undivided weight."""
        return tuple(size * ranks if axis == self.dimension else size for axis, size in enumerate(shard))

    def shard(self, whole: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
        """Cut out what one of P ranks holds."""
        if self.dimension is None or ranks == 1:
            return whole
        blocks = whole.chunk(self.pieces, dim=self.dimension)
        return torch.cat([block.chunk(ranks, dim=self.dimension)[rank] for block in blocks], dim=self.dimension)

    def join(self, shards: Sequence[torch.Tensor]) -> torch.Tensor:
        """Put the parts of all P ranks together again."""
        if self.dimension is None or len(shards) == 1:
            return shards[0]
        blocks = zip(*(shard.chunk(self.pieces, dim=self.dimension) for shard in shards), strict=True)
        return torch.cat([part for block in blocks for part in block], dim=self.dimension)


_DIVISIONS: Mapping[str, Division] = MappingProxyType(
    {
        EMBEDDING: Division(0),
        OUTPUT: Division(0),
        VALUE: Division(),
        "self_attention.linear_qkv.weight": Division(0),
        "self_attention.linear_proj.weight": Division(1),
        "mlp.linear_fc1.weight": Division(0, pieces=2),
        "mlp.linear_fc2.weight": Division(1),
        "input_layernorm.weight": Division(),
        "pre_mlp_layernorm.weight": Division(),
        "decoder.final_layernorm.weight": Division(),
    }
)


def division_of(name: str) -> Division:
    """Return how the weight of that name is divided.

    Raises:
        ModelConfigError: The Llama-like model has no such weight.
    """
    suffix = _LAYER.sub("", name)
    if suffix not in _DIVISIONS:
        raise ModelConfigError(f"the Llama-like model has no weight named {name!r}; it has {', '.join(_DIVISIONS)}")
    return _DIVISIONS[suffix]


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights of the undivided model, in the order of the forward pass."""
    hidden, ffn, head = config.hidden_size, config.ffn_hidden_size, config.head_size
    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attention.linear_qkv.weight": ((config.num_attention_heads + 2 * config.query_groups) * head, hidden),
        "self_attention.linear_proj.weight": (hidden, hidden),
        "pre_mlp_layernorm.weight": (hidden,),
        "mlp.linear_fc1.weight": (2 * ffn, hidden),
        "mlp.linear_fc2.weight": (hidden, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for number in range(config.num_layers):
        shapes |= {f"decoder.layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes["decoder.final_layernorm.weight"] = (hidden,)
    if config.head == "value":
        return {**shapes, VALUE: (1, hidden)}
    return shapes if config.share_embeddings else {**shapes, OUTPUT: (config.vocab_size, hidden)}


def stage_of(name: str, config: ModelConfig, stages: int) -> int:
    """Return the pipeline stage that holds a weight."""
    layer = _LAYER.match(name)
    if layer:
        return int(layer[1]) // (config.num_layers // stages)
    return 0 if name == EMBEDDING else stages - 1


def whole_model_name(local_name: str, first_layer: int) -> str:
    """Return the undivided model's name of a weight on a pipeline stage that begins with layer `first_layer`."""
    return _LAYER.sub(lambda match: f"decoder.layers.{int(match[1]) + first_layer}.", local_name)


def initial_weight(name: str, shape: Sequence[int], config: ModelConfig, seed: int) -> torch.Tensor:
    """Draw a whole weight: normal with `init_std`, smaller where it feeds the residual stream; norms are 1.

    The scaling by sqrt(2 * layers) is GPT-2's (Radford et al. 2019, section 2.3), and Megatron-Core's default. Always
    drawn on the CPU, so that every device starts from the same numbers.

    Returns:
        float32, of the given shape.
    """
    if name.endswith("norm.weight"):
        return torch.ones(*shape)
    if config.share_embeddings and name == OUTPUT:
        name = EMBEDDING
    feeds_residual = name.endswith(("linear_proj.weight", "linear_fc2.weight"))
    std = config.init_std / ((2 * config.num_layers) ** 0.5 if feeds_residual else 1)
    return torch.empty(*shape).normal_(0.0, std, generator=_generator(seed, name))


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
