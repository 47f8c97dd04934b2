"""The Llama-like model in Hugging Face's names and shapes: pure renaming and cutting, and the directory on disk.

H query heads, G key and value heads, d head size; `hidden` width of the residual stream.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from fanfold.megatron.config import ModelConfig
from fanfold.megatron.errors import CheckpointError
from fanfold.megatron.weights import EMBEDDING, OUTPUT, VALUE, weight_shapes
from safetensors import safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.(.*)$")
_PLAIN: Mapping[str, str] = MappingProxyType(
    {
        EMBEDDING: "model.embed_tokens.weight",
        "decoder.final_layernorm.weight": "model.norm.weight",
        OUTPUT: "lm_head.weight",
        VALUE: "score.weight",
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
        "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    }
)
_INDEX = "model.safetensors.index.json"


def names_of(name: str) -> list[str]:
    """Return the names that one of our weights has there: one, or those it is cut into."""
    layer = _LAYER.match(name)
    if not layer:
        return [_PLAIN[name]]
    number, part = layer[1], layer[2]
    if part == "self_attention.linear_qkv.weight":
        parts = [f"self_attn.{which}_proj.weight" for which in "qkv"]
    elif part == "mlp.linear_fc1.weight":
        parts = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
    else:
        parts = [_PLAIN[part]]
    return [f"model.layers.{number}.{each}" for each in parts]


def to_huggingface(name: str, whole: torch.Tensor, config: ModelConfig) -> list[tuple[str, torch.Tensor]]:
    """Cut one of our whole weights into theirs."""
    names = names_of(name)
    return list(zip(names, _cut(whole, len(names), config), strict=True))


def from_huggingface(parts: list[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """Put their weights together to one of ours."""
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:  # noqa: PLR2004  # gate and up
        return torch.cat(parts)
    groups, head = config.query_groups, config.head_size
    return torch.cat([part.view(groups, -1, head, part.shape[-1]) for part in parts], dim=1).flatten(0, 2)


def _cut(whole: torch.Tensor, parts: int, config: ModelConfig) -> list[torch.Tensor]:
    if parts == 1:
        return [whole]
    if parts == 2:  # noqa: PLR2004  # gate and up
        return list(whole.chunk(2))
    heads = config.num_attention_heads // config.query_groups
    grouped = whole.view(config.query_groups, heads + 2, config.head_size, whole.shape[-1])
    return [part.flatten(0, 2) for part in torch.split(grouped, [heads, 1, 1], dim=1)]


def config_to_huggingface(config: ModelConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Say what `config.json` says."""
    further = {} if config.head == "language" else {"num_labels": 1}
    return {
        **further,
        "architectures": ["LlamaForCausalLM" if config.head == "language" else "LlamaForSequenceClassification"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.query_groups,
        "head_dim": config.head_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_sequence_length,
        "rope_theta": float(config.rotary_base),
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.share_embeddings and config.head == "language",
        "hidden_act": "silu",
        "attention_dropout": config.attention_dropout,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def model_config_from_huggingface(path: str | Path) -> ModelConfig:
    """Read the sizes of a Llama model from its directory.

    Raises:
        CheckpointError: There is no `config.json`, or the model has something that this one has not; it is named.
    """
    file = Path(path) / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{path} is no Hugging Face model: it has no config.json")
    said = json.loads(file.read_text(encoding="utf-8"))
    _refuse_what_is_not_here(said, file)
    heads = said["num_attention_heads"]
    return ModelConfig(
        hidden_size=said["hidden_size"],
        ffn_hidden_size=said["intermediate_size"],
        num_layers=said["num_hidden_layers"],
        num_attention_heads=heads,
        num_query_groups=said.get("num_key_value_heads") or heads,
        vocab_size=said["vocab_size"],
        max_sequence_length=said["max_position_embeddings"],
        rotary_base=int(said.get("rope_theta", 10000)),
        norm_epsilon=said["rms_norm_eps"],
        share_embeddings=bool(said.get("tie_word_embeddings", False)),
        attention_dropout=float(said.get("attention_dropout", 0.0)),
        head="value" if said.get("architectures") == ["LlamaForSequenceClassification"] else "language",
    )


def _refuse_what_is_not_here(said: Mapping[str, Any], file: Path) -> None:
    wanted: dict[str, Callable[[Any], bool]] = {
        "model_type": lambda value: value == "llama",
        "hidden_act": lambda value: value in (None, "silu"),
        "attention_bias": lambda value: not value,
        "mlp_bias": lambda value: not value,
        "rope_scaling": lambda value: value is None,
        "head_dim": lambda value: value in (None, said["hidden_size"] // said["num_attention_heads"]),
    }
    for field, fits in wanted.items():
        if not fits(said.get(field)):
            raise CheckpointError(f"{file} says {field}={said[field]!r}, which this Llama-like model does not have")


class HuggingFaceReader:
    """The weights of a directory of safetensors, by our names; one is read at a time.

    Raises:
        CheckpointError: A weight is missing or has another shape.
    """

    def __init__(self, path: str | Path, config: ModelConfig) -> None:
        self._config = config
        self._files = _files(Path(path))
        for name, shape in weight_shapes(config).items():
            if not self._lacks_head(name):
                self._check(name, shape)

    def read(self, name: str) -> torch.Tensor | None:
        """Return one of our weights, whole; None for the head of a value model that starts from a language model."""
        if self._lacks_head(name):
            return None
        return from_huggingface([self._one(part) for part in names_of(name)], self._config)

    def _lacks_head(self, name: str) -> bool:
        return name == VALUE and names_of(VALUE)[0] not in self._files

    def _one(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], framework="pt") as file:
            return torch.as_tensor(file.get_tensor(name))

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        expected = to_huggingface(name, torch.empty(shape, device="meta"), self._config)
        for theirs, tensor in expected:
            if theirs not in self._files:
                raise CheckpointError(f"the Hugging Face model has no {theirs}; it has {len(self._files)} weights")
            with safe_open(self._files[theirs], framework="pt") as file:
                found = tuple(file.get_slice(theirs).get_shape())
            if found != tuple(tensor.shape):
                raise CheckpointError(f"there {theirs} has the shape {list(found)}, here {list(tensor.shape)}")


def _files(path: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            files |= dict.fromkeys(opened.keys(), file)
    if not files:
        raise CheckpointError(f"{path} has no weights: no *.safetensors in it")
    return files


def write_huggingface(
    path: Path, config: ModelConfig, weights: Iterable[tuple[str, torch.Tensor]], *, file_bytes: int
) -> None:
    """Write a directory that Hugging Face's Llama loads, whole or not at all.

    Args:
        path: The directory; one that is there is replaced.
        config: The model's sizes.
        weights: Their names, and tensors.
        file_bytes: Most bytes in one file.
    """
    partial = path.with_name(f".partial-{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    where: dict[str, str] = {}
    dtype = torch.float32
    for number, part in enumerate(_parts(weights, file_bytes)):
        file = f"model-{number + 1:05d}.safetensors"
        save_file(part, partial / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
        dtype = next(iter(part.values())).dtype
    (partial / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}, indent=1), encoding="utf-8")
    (partial / "config.json").write_text(json.dumps(config_to_huggingface(config, dtype), indent=1), encoding="utf-8")
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)


def _parts(weights: Iterable[tuple[str, torch.Tensor]], file_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    for name, weight in weights:
        size = weight.numel() * weight.element_size()
        if part and size + sum(one.numel() * one.element_size() for one in part.values()) > file_bytes:
            yield part
            part = {}
        part[name] = weight.detach().cpu().contiguous()
    yield part
