"""The Llama-like model once more, in plain PyTorch and float64: what the numbers are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import silu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanfold.megatron import ModelConfig


def logits(weights: Mapping[str, torch.Tensor], config: ModelConfig, ids: torch.Tensor) -> torch.Tensor:
    """Return [T, vocabulary] for one row of tokens [T]."""
    weight = {name: value.double() for name, value in weights.items()}
    output = weight.get("output_layer.weight", weight["embedding.word_embeddings.weight"])
    return hidden(weights, config, ids) @ output.T


def hidden(weights: Mapping[str, torch.Tensor], config: ModelConfig, ids: torch.Tensor) -> torch.Tensor:
    """Return [T, hidden size], what the last layer's head reads."""
    weight = {name: value.double() for name, value in weights.items()}
    stream = weight["embedding.word_embeddings.weight"][ids]
    for number in range(config.num_layers):
        part = {name.partition(f"layers.{number}.")[2]: value for name, value in weight.items()}
        stream = stream + _attention(_norm(stream, part["input_layernorm.weight"], config), part, config)
        stream = stream + _feed_forward(_norm(stream, part["pre_mlp_layernorm.weight"], config), part)
    return _norm(stream, weight["decoder.final_layernorm.weight"], config)


def _norm(x: torch.Tensor, weight: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_epsilon).sqrt() * weight


def _feed_forward(x: torch.Tensor, part: Mapping[str, torch.Tensor]) -> torch.Tensor:
    gate, up = (x @ part["mlp.linear_fc1.weight"].T).chunk(2, dim=-1)
    return silu(gate) * up @ part["mlp.linear_fc2.weight"].T


def _attention(x: torch.Tensor, part: Mapping[str, torch.Tensor], config: ModelConfig) -> torch.Tensor:
    size, groups = config.head_size, config.query_groups
    heads = config.num_attention_heads // groups
    mixed = (x @ part["self_attention.linear_qkv.weight"].T).view(len(x), groups, heads + 2, size)
    query, key, value = mixed[:, :, :heads], mixed[:, :, heads], mixed[:, :, heads + 1]
    query, key = _rotate(query, config), _rotate(key, config)
    scores = torch.einsum("tghd,sgd->ghts", query, key) / size**0.5
    scores.masked_fill_(torch.ones(len(x), len(x)).triu(1).bool(), float("-inf"))
    together = torch.einsum("ghts,sgd->tghd", scores.softmax(-1), value).reshape(len(x), -1)
    return together @ part["self_attention.linear_proj.weight"].T


def _rotate(x: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    half = config.head_size // 2
    frequency = config.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(len(x), dtype=torch.float64)[:, None] * frequency
    angle = angle.view(len(x), *(1,) * (x.dim() - 2), half)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], dim=-1)


def huggingface_logits(weights: Mapping[str, torch.Tensor], config: ModelConfig, ids: torch.Tensor) -> torch.Tensor:
    """Return [T, vocabulary] from Hugging Face's names, where head h reads key and value head h // repeats."""
    weight = {name: value.double() for name, value in weights.items()}
    stream = weight["model.embed_tokens.weight"][ids]
    for number in range(config.num_layers):
        part = {name.partition(f"layers.{number}.")[2]: value for name, value in weight.items()}
        hidden = _norm(stream, part["input_layernorm.weight"], config)
        query, key, value = (
            (hidden @ part[f"self_attn.{which}_proj.weight"].T).view(len(ids), -1, config.head_size) for which in "qkv"
        )
        query, key = _rotate(query, config), _rotate(key, config)
        repeats = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(repeats, dim=1) for one in (key, value))
        scores = torch.einsum("thd,shd->hts", query, key) / config.head_size**0.5
        scores.masked_fill_(torch.ones(len(ids), len(ids)).triu(1).bool(), float("-inf"))
        mixed = torch.einsum("hts,shd->thd", scores.softmax(-1), value).reshape(len(ids), -1)
        stream = stream + mixed @ part["self_attn.o_proj.weight"].T
        hidden = _norm(stream, part["post_attention_layernorm.weight"], config)
        gate, up = hidden @ part["mlp.gate_proj.weight"].T, hidden @ part["mlp.up_proj.weight"].T
        stream = stream + silu(gate) * up @ part["mlp.down_proj.weight"].T
    output = weight.get("lm_head.weight", weight["model.embed_tokens.weight"])
    return _norm(stream, weight["model.norm.weight"], config) @ output.T
