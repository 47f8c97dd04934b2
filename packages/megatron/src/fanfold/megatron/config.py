"""What is trained, and how: frozen values that a driver can make and check before any rank starts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from fanfold.megatron.errors import LayoutError, ModelConfigError
from fanfold.megatron.schedule import LearningRate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanfold.megatron.topology import ParallelConfig


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a Llama-like model: RMS norm, rotary positions, SwiGLU, no biases.

    Attributes:
        hidden_size: Width of the residual stream.
        ffn_hidden_size: Width inside the feed-forward part.
        num_layers: Transformer layers.
        num_attention_heads: Query heads.
        num_query_groups: Key and value heads; as many as query heads when left out.
        vocab_size: Known tokens; 256 is exactly bytes.
        max_sequence_length: Most tokens in a row.
        rotary_base: Base of the rotary frequencies.
        norm_epsilon: What RMS norm adds below the root.
        share_embeddings: Whether the output layer is the input embedding.
        init_std: Standard deviation of the initial weights.
        hidden_dropout: Share of the residual stream that training drops, behind the embedding and each sublayer. With
            dropout, layouts draw different numbers: they agree in distribution, no longer in each number.
        attention_dropout: Share of attention weights that training drops.
        head: What the last layer says: `language` the next token, `value` one number at each position (a critic).
    """

    hidden_size: int = 128
    ffn_hidden_size: int = 352
    num_layers: int = 2
    num_attention_heads: int = 4
    num_query_groups: int | None = None
    vocab_size: int = 256
    max_sequence_length: int = 4096
    rotary_base: int = 10000
    norm_epsilon: float = 1e-5
    share_embeddings: bool = False
    init_std: float = 0.02
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    head: Literal["language", "value"] = "language"

    def __post_init__(self) -> None:
        for field in _COUNTS:
            size = getattr(self, field)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ModelConfigError(f"{field}={size!r} must be a whole number of 1 or more")
        if self.head not in ("language", "value"):
            raise ModelConfigError(f"head={self.head!r} must be 'language' or 'value'")
        for field in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise ModelConfigError(f"{field}={getattr(self, field)} must be at least 0 and below 1")
        self._must_divide("num_attention_heads", "hidden_size")
        if self.num_query_groups is not None:
            self._must_divide("num_query_groups", "num_attention_heads")
        if self.head_size % 2:
            raise ModelConfigError(
                f"hidden_size / num_attention_heads = {self.head_size} must be even for rotary positions"
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def query_groups(self) -> int:
        """Key and value heads."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def parameter_count(self) -> int:
        """Weights of the whole model, all ranks together."""
        attention = self.hidden_size * self.head_size * (2 * self.num_attention_heads + 2 * self.query_groups)
        layer = attention + 3 * self.hidden_size * self.ffn_hidden_size + 2 * self.hidden_size
        embedding = self.vocab_size * self.hidden_size
        head = self.hidden_size if self.head == "value" else 0 if self.share_embeddings else embedding
        return self.num_layers * layer + embedding + self.hidden_size + head

    def check_layout(self, parallel: ParallelConfig) -> None:
        """Refuse a layout that this model cannot be divided into.

        Raises:
            LayoutError: A parallel size does not divide a size of the model, or the layout not its longest row; the
                text names both.
        """
        needed = [("tensor", field) for field in ("num_attention_heads", "ffn_hidden_size", "vocab_size")]
        for axis, field in [*needed, ("pipeline", "num_layers")]:
            _check_divides(axis, getattr(parallel, axis), field, getattr(self, field))
        _check_divides("tensor", parallel.tensor, "num_query_groups", self.query_groups)
        pieces = parallel.pieces_of_a_row
        if self.max_sequence_length % pieces:
            raise LayoutError(
                f"the layout cuts each row into {pieces} equal pieces, and the longest, "
                f"max_sequence_length={self.max_sequence_length}, cannot be cut so; take a multiple of {pieces}"
            )
        if parallel.expert > 1:
            raise LayoutError(
                f"expert={parallel.expert} needs a model with experts, and this one has none; leave expert at 1"
            )

    def _must_divide(self, divisor: str, number: str) -> None:
        if getattr(self, number) % getattr(self, divisor):
            raise ModelConfigError(f"{divisor}={getattr(self, divisor)} must divide {number}={getattr(self, number)}")


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam as Megatron-Core runs it.

    Attributes:
        learning_rate: A number, or how it changes with the step.
        weight_decay: Decoupled weight decay (AdamW).
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: What is added to the root of the second moment.
        clip_grad: Largest norm of the gradient, over all weights of all ranks; 0 does not clip.
        distributed: Whether the moments are divided over the data-parallel ranks.
        overlap_gradients: Whether gradients are summed over the replicas while the backward pass goes on.
    """

    learning_rate: LearningRate | float = 1e-3
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip_grad: float = 1.0
    distributed: bool = False
    overlap_gradients: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.learning_rate, LearningRate):
            object.__setattr__(self, "learning_rate", LearningRate(float(self.learning_rate)))
        for field in ("weight_decay", "epsilon", "clip_grad"):
            if getattr(self, field) < 0:
                raise ModelConfigError(f"{field}={getattr(self, field)} must be 0 or more")
        for field in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise ModelConfigError(f"{field}={getattr(self, field)} must be at least 0 and below 1")

    @property
    def schedule(self) -> LearningRate:
        """The learning rate as a function of the step."""
        assert isinstance(self.learning_rate, LearningRate)
        return self.learning_rate


class ModelProvider(Protocol):
    """Makes a rank's part of a model that is not the Llama-like one; a function of a module, so that it can travel."""

    def __call__(self, model: ModelConfig, config: Any, /, *, pre_process: bool, post_process: bool) -> Any:
        """Return a `MegatronModule` that is called as `GPTModel` is, on the CPU or on the current device.

        Args:
            model: The sizes that the trainer was given.
            config: Megatron's `TransformerConfig` of them, of the layout and of the device.
            pre_process: Whether this is the first pipeline stage, which has the embedding.
            post_process: Whether this is the last one, which has the output layer.
        """


_COUNTS = (
    "hidden_size",
    "ffn_hidden_size",
    "num_layers",
    "num_attention_heads",
    "vocab_size",
    "max_sequence_length",
)

PRESETS: Mapping[str, ModelConfig] = MappingProxyType(
    {
        "tiny": ModelConfig(),
        "llama-1b": ModelConfig(hidden_size=2048, ffn_hidden_size=5504, num_layers=24, num_attention_heads=16),
    }
)


def model_config(model: ModelConfig | str, **changes: object) -> ModelConfig:
    """Return a preset by its name, or the given model, with some sizes changed.

    Raises:
        ModelConfigError: There is no preset of that name, or the changed model cannot be.
    """
    if isinstance(model, str):
        if model not in PRESETS:
            raise ModelConfigError(
                f"no preset is named {model!r}; there are {', '.join(sorted(PRESETS))}, or give a ModelConfig"
            )
        model = PRESETS[model]
    return dataclasses.replace(model, **changes)  # type: ignore[arg-type] # the class checks its values


def _check_divides(axis: str, parts: int, field: str, size: int) -> None:
    if size % parts:
        fits = [number for number in range(1, size + 1) if size % number == 0]
        raise LayoutError(
            f"{axis}={parts} does not divide {field}={size}; take one of {', '.join(map(str, fits[:12]))}"
        )
