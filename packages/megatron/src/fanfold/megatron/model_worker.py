"""A worker that has a part of a language model: made, kept in checkpoints, exchanged with Hugging Face's format."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fanfold.dispatch import Dispatch, register
from fanfold.megatron.config import ModelConfig, ModelProvider, OptimizerConfig, model_config
from fanfold.megatron.device import plan_attention
from fanfold.megatron.directories import CheckpointPath
from fanfold.megatron.errors import CheckpointError, ModelConfigError, NotInitialisedError, OffloadedError
from fanfold.megatron.huggingface import HuggingFaceReader, to_huggingface, write_huggingface
from fanfold.megatron.offload import PARTS, Host
from fanfold.megatron.topology import ParallelConfig
from fanfold.megatron.worker import MegatronWorker, in_megatron, load_engine, without_megatrons_warnings
from safetensors import SafetensorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import torch


class ModelWorker(MegatronWorker):
    """A rank's part of a language model and of its optimizer; `MegatronTrainer` adds what is done with them.

    Args:
        model: A preset's name (`tiny`, `llama-1b`) or the sizes.
        optimizer: Adam's settings.
        attention: What computes attention: `auto` takes TransformerEngine where it is installed and the ranks compute
            in bf16 on CUDA with NCCL, else torch's `scaled_dot_product_attention`; `transformer_engine` and `sdpa` are
            orders. A model of `model_provider` has its own.
        model_provider: What makes the model instead of the Llama-like one; see `ModelProvider`. Checkpoints work with
            it; `weights`, `state_digest` and Hugging Face's format, which know the Llama-like model's names, do not.
        worker: The arguments of `MegatronWorker`.

    Raises:
        ModelConfigError: There is no such preset.
        DeviceError: TransformerEngine was ordered, and the ranks cannot use it.
        LayoutError: The layout does not divide the model or the ranks.
    """

    def __init__(
        self,
        *,
        model: ModelConfig | str = "tiny",
        optimizer: OptimizerConfig | None = None,
        attention: Literal["auto", "sdpa", "transformer_engine"] = "auto",
        model_provider: ModelProvider | None = None,
        **worker: Any,
    ) -> None:
        self.model_provider, self.attention = model_provider, attention
        self.model = model_config(model)
        self.optimizer = optimizer or OptimizerConfig()
        self.step = 0
        self._built: Any = None
        self._host = Host()
        if worker.get("parallel") is not None:
            self.model.check_layout(worker["parallel"])
        super().__init__(**worker)
        self.model.check_layout(self.parallel)
        plan_attention(self.device, request=attention, installed=find_spec("transformer_engine") is not None)

    @classmethod
    def check_before_start(cls, world_size: int, arguments: Mapping[str, Any]) -> None:
        """Refuse a model or a layout that cannot be, where the driver makes the group.

        Raises:
            ModelConfigError: There is no such preset.
            LayoutError: The layout does not divide the model or the ranks.
        """
        model, parallel = arguments.get("model"), arguments.get("parallel")
        if isinstance(model, ModelConfig | str):
            model_config(model).check_layout(parallel if isinstance(parallel, ParallelConfig) else ParallelConfig())
        super().check_before_start(world_size, arguments)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def init_model(self, checkpoint: str | None = None, huggingface: str | None = None) -> dict[str, Any]:
        """Make this rank's part of the model and its optimizer, with random weights that depend on the seed alone.

        Args:
            checkpoint: Where `load_checkpoint` shall then read the newest checkpoint.
            huggingface: Where `load_hf` shall then read the weights.

        Returns:
            How many weights this rank holds, the device it computes on, and the step that training goes on from.

        Raises:
            ModelConfigError: Both were given, or the model's provider made something else.
            CheckpointError: As `load_checkpoint` and `load_hf`.
        """
        if checkpoint is not None and huggingface is not None:
            raise ModelConfigError(
                f"weights come from checkpoint={checkpoint!r} or huggingface={huggingface!r}, not both"
            )
        self._release()
        engine = load_engine("model")
        with without_megatrons_warnings():
            blueprint = engine.Blueprint(
                self.model, self.optimizer, self.seed, attention=self.attention, provider=self.model_provider
            )
            self._built = engine.build(blueprint, self.parallel, self.device)
        if checkpoint is not None:
            self.load_checkpoint(checkpoint)
        if huggingface is not None:
            self.load_hf(huggingface)
        count = sum(parameter.numel() for parameter in self._built.module.parameters())
        return {"parameters": count, "device": self.device.describe(), "rank": self.rank, "step": self.step}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def offload(self, parts: tuple[str, ...] = PARTS) -> int:
        """Move parts of the model to the host's memory, to make room on the device; gradients are dropped.

        Methods that need a part that is away refuse to run, until `reload` brings it back. Training goes on as if
        nothing had moved. On the CPU everything is done alike, and nothing is gained.

        Args:
            parts: Some of `weights`, `gradients`, `optimizer`; those that are away already stay away.

        Returns:
            Bytes that this made free on the device, of this rank.

        Raises:
            ModelConfigError: There is no such part.
            NotInitialisedError: `init_model` has not run.
        """
        self._need_model("offload", parts=())
        return self._host.take(self._built, _checked_parts(parts))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def reload(self, parts: tuple[str, ...] = PARTS) -> int:
        """Bring back to the device what `offload` has moved to the host.

        Args:
            parts: Some of `weights`, `gradients`, `optimizer`; those that are not away stay as they are.

        Returns:
            Bytes that are in use again on the device, of this rank.

        Raises:
            ModelConfigError: There is no such part.
            NotInitialisedError: `init_model` has not run.
        """
        self._need_model("reload", parts=())
        return self._host.give_back(_checked_parts(parts))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def save_checkpoint(self, path: str, keep: int | None = None, time_limit: float = 600.0) -> str:
        """Write weights, optimizer, random states and step to `path/step-<number>`, whole or not at all.

        Args:
            path: A directory on a file system that all nodes share.
            keep: How many of the newest checkpoints stay; all of them when left out.
            time_limit: Seconds for writing.

        Returns:
            The checkpoint's directory.

        Raises:
            CheckpointError: A rank could not write, or not in time; earlier checkpoints are as they were.
            NotInitialisedError: `init_model` has not run.
        """
        self._need_model("save_checkpoint", parts=("weights", "optimizer"))
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep={keep} must be 1 or more, or None to keep all")
        place = CheckpointPath(Path(path).absolute(), self.step)
        load_engine("checkpoint").save(self._built, self.model, place, limit=time_limit, keep=keep)
        return str(place.final)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def load_checkpoint(self, path: str, step: int | None = None, optimizer: bool = True) -> int:
        """Read what `save_checkpoint` wrote, in this layout or in any other.

        Args:
            path: The same path.
            step: Which checkpoint; the newest when left out.
            optimizer: Whether the optimizer's moments, the random states and the step are taken over too; otherwise
                training starts anew from these weights. Another layout than the one that wrote takes new random
                states, from its seed and the step.

        Returns:
            The step that training goes on from.

        Raises:
            CheckpointError: There is none, or it is of another model (the first weight that differs is named).
            NotInitialisedError: `init_model` has not run.
        """
        self._need_model("load_checkpoint", parts=("weights", "optimizer"))
        root = Path(path).absolute()
        found: int = load_engine("checkpoint").load(self._built, self.model, root, step, optimizer=optimizer)
        self.step = found if optimizer else 0
        return self.step

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def state_digest(self) -> str:
        """Hash the weights of the whole model; the same weights give the same text in every layout."""
        self._need_model("state_digest")
        self._need_known_names("state_digest")
        digest: str = load_engine("streaming").state_digest(self._built, self.model)
        return digest

    def weights(self, bucket_bytes: int = 1 << 28) -> Iterator[tuple[str, torch.Tensor]]:
        """Give out all weights of the model, whole, by Hugging Face's names: for another role in the same processes.

        Not registered: a driver would hold the whole model. All ranks must take all weights; each holds about one
        bucket at a time.

        Args:
            bucket_bytes: About how much is collected from the other ranks at once.
        """
        self._need_model("weights")
        self._need_known_names("weights")
        for name, weight in load_engine("streaming").whole_weights(self._built, self.model, bucket_bytes):
            yield from to_huggingface(name, weight, self.model)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def export_hf(self, path: str, file_bytes: int = 4 << 30) -> str:
        """Write the weights as a Hugging Face Llama model (config.json and safetensors), from rank 0.

        Args:
            path: The directory; one that is there is replaced.
            file_bytes: Most bytes in one file.

        Raises:
            CheckpointError: Rank 0 could not write.
        """
        self._need_model("export_hf")
        self._need_known_names("export_hf")
        weights, problem = self.weights(), None
        try:
            if self.rank == 0:
                write_huggingface(Path(path), self.model, weights, file_bytes=file_bytes)
        except (OSError, SafetensorError) as error:
            problem = f"{type(error).__name__}: {error}"
        for _ in weights:
            pass  # the other ranks, and rank 0 where it could not go on, still have their part in collecting
        load_engine("checkpoint").raise_together(f"writing {path}", problem)
        return path

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def load_hf(self, path: str) -> None:
        """Take the weights of a Hugging Face Llama model, in any layout; the optimizer starts anew.

        Args:
            path: A directory of safetensors that all nodes see. `model_config_from_huggingface(path)` reads its sizes.

        Raises:
            CheckpointError: There is none, or a weight is missing or has another shape; nothing has changed then.
        """
        self._need_model("load_hf", parts=("weights", "optimizer"))
        self._need_known_names("load_hf")
        problem = reader = None
        try:
            reader = HuggingFaceReader(path, self.model)
        except CheckpointError as error:
            problem = str(error)
        load_engine("checkpoint").raise_together(f"reading {path}", problem)
        load_engine("model").set_weights(self._built, reader.read)  # type: ignore[union-attr] # or it has raised
        self.step = 0

    def close(self) -> None:
        """Let go of the model, which holds on to the process groups, and of these."""
        self._release()
        super().close()

    def _release(self) -> None:
        if self._built is not None:
            load_engine("model").release(self._built)
        self._built, self._host, self.step = None, Host(), 0

    def _need_known_names(self, method: str) -> None:
        if self.model_provider is not None:
            raise ModelConfigError(
                f"{method} knows the Llama-like model's weights by their names, and this model is of model_provider "
                f"{self.model_provider!r}; save_checkpoint keeps any model"
            )

    def _need_model(self, method: str, parts: tuple[str, ...] = ("weights",)) -> None:
        if self._built is None:
            raise NotInitialisedError(f"{method} on rank {self.rank} needs the model; call init_model first")
        away = [part for part in self._host.parts if part in parts]
        if away:
            raise OffloadedError(
                f"{method} on rank {self.rank} needs the {' and '.join(away)}, which offload() has moved to the host; "
                "call reload() first"
            )


def _checked_parts(parts: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(parts)
    unknown = [part for part in chosen if part not in PARTS]
    if unknown or isinstance(parts, str):
        raise ModelConfigError(f"parts={parts!r} must be a tuple of some of {', '.join(PARTS)}")
    return chosen
