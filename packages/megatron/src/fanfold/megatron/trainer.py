"""A worker that trains a language model: the driver sees one object, every rank does its part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fanfold.dataproto import DataProto
from fanfold.dispatch import Dispatch, NoCallError, current_call, make_nd_compute_dataproto_dispatch_fn, register
from fanfold.megatron.agreement import StepPlan, agree_on_step
from fanfold.megatron.config import ModelConfig, OptimizerConfig, model_config
from fanfold.megatron.directories import CheckpointPath
from fanfold.megatron.errors import (
    BatchError,
    CheckpointError,
    ModelConfigError,
    NonFiniteLossError,
    NotInitialisedError,
)
from fanfold.megatron.huggingface import HuggingFaceReader, to_huggingface, write_huggingface
from fanfold.megatron.losses import CrossEntropy, TokenLoss
from fanfold.megatron.rows import RowLimits, Rows, read_rows
from fanfold.megatron.worker import MESH, MegatronWorker, in_megatron, load_engine, without_megatrons_warnings
from safetensors import SafetensorError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_BY_DATA_PARALLEL = make_nd_compute_dataproto_dispatch_fn(mesh_name=MESH)


class MegatronTrainer(MegatronWorker):
    """A language model in any parallel layout, with the same numbers in every one.

    Args:
        model: A preset's name (`tiny`, `llama-1b`) or the sizes.
        optimizer: Adam's settings.
        micro_batch_size: Rows that go through the model at once; when left out, all rows of a rank, divided by the
            number of pipeline stages.
        on_non_finite: What to do with a step whose loss or gradient is NaN or infinite: `raise`, or `skip` the step and
            say so in its metrics. The weights stay as they were either way.
        worker: The arguments of `MegatronWorker`.

    Raises:
        ModelConfigError: There is no such preset, or an option is unknown.
        LayoutError: The layout does not divide the model or the ranks.
    """

    def __init__(
        self,
        *,
        model: ModelConfig | str = "tiny",
        optimizer: OptimizerConfig | None = None,
        micro_batch_size: int | None = None,
        on_non_finite: Literal["raise", "skip"] = "raise",
        **worker: Any,
    ) -> None:
        self.model = model_config(model)
        self.optimizer = optimizer or OptimizerConfig()
        self.micro_batch_size = micro_batch_size
        self.on_non_finite = on_non_finite
        self.step = 0
        self._built: Any = None
        _check_options(micro_batch_size, on_non_finite)
        if worker.get("parallel") is not None:
            self.model.check_layout(worker["parallel"])
        super().__init__(**worker)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def init_model(self) -> dict[str, Any]:
        """Make this rank's part of the model and its optimizer, with random weights that depend on the seed alone.

        Returns:
            How many weights this rank holds, and the device it computes on.
        """
        self.step = 0
        engine = load_engine("model")
        with without_megatrons_warnings():
            self._built = engine.build(self.model, self.parallel, self.device, self.optimizer, self.seed)
        count = sum(parameter.numel() for parameter in self._built.module.parameters())
        return {"parameters": count, "device": self.device.describe(), "rank": self.rank}

    @register(dispatch_mode=_BY_DATA_PARALLEL)
    @in_megatron
    def train_model(self, batch: DataProto, loss: TokenLoss | None = None) -> DataProto:
        """Do one optimizer step.

        B rows, T tokens a row. Rows may be padded at the left or the right; each target of the global batch counts
        once, whichever rank has its row.

        Args:
            batch: `input_ids` [B, T], `attention_mask` [B, T], and where given `position_ids` [B, T] and `loss_mask`
                [B, T] (1 for the tokens whose prediction counts; all but the first of a row when left out), and the
                columns that the loss reads.
            loss: What a target costs: the cross-entropy when left out, a `PolicyGradient`, or your own `TokenLoss`.

        Returns:
            `loss` [B] float32, the mean over the row's targets (0 for a row without any), and `targets` [B]; in
            `meta_info["metrics"]` the `loss` over the global batch, `grad_norm` before clipping, `tokens` (its
            targets), `learning_rate`, `step`, `applied` (0 where the step was skipped), and what the loss reports.

        Raises:
            BatchError: Some rank's rows cannot be used, with the rank and the row; nothing has changed.
            NonFiniteLossError: The loss or the gradient is not finite; nothing has changed.
            NotInitialisedError: `init_model` has not run.
        """
        self._need_model("train_model")
        step, loss = load_engine("step"), loss or CrossEntropy()
        plan, rows = self._agree(batch, loss.columns)
        plan.refuse_nothing()
        losses = step.forward_backward(self._built, rows, plan, loss)
        learning_rate = self.optimizer.schedule.at(self.step + 1)
        load_engine("model").set_learning_rate(self._built, learning_rate)
        norm, applied = (float("nan"), False) if losses.trouble else step.apply_gradients(self._built)
        if not applied:
            self._refuse_non_finite(losses.trouble or f"the gradient norm is {norm}")
        self.step += applied
        metrics = {
            **losses.further,
            "loss": losses.mean,
            "grad_norm": norm,
            "tokens": plan.targets,
            "learning_rate": learning_rate,
            "step": self.step,
            "applied": int(applied),
        }
        return _row_losses(losses.row_sums, rows, metrics)

    @register(dispatch_mode=_BY_DATA_PARALLEL)
    @in_megatron
    def compute_log_prob(self, batch: DataProto, temperature: float = 1.0) -> DataProto:
        """Say how probable each token was to the model, given those before it; no gradients, nothing changes.

        Args:
            batch: As for `train_model`.
            temperature: What logits are divided by.

        Returns:
            `log_probs` [B, T] float32, natural logarithms, at the place of each token; `entropy` [B, T] float32, nats,
            of the distribution that the token was drawn from. Both are 0 for the first token of a row and for padding.

        Raises:
            BatchError: As for `train_model`, and for a temperature that is not above 0.
            NotInitialisedError: `init_model` has not run.
        """
        self._need_model("compute_log_prob")
        if not temperature > 0:
            raise BatchError(f"temperature={temperature} must be above 0")
        plan, rows = self._agree(batch)
        both = load_engine("scoring").score(self._built, rows, plan, temperature)
        log_probs, entropy = (rows.at_callers_positions(values) for values in both)
        return DataProto.from_dict(tensors={"log_probs": log_probs, "entropy": entropy})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def save_checkpoint(self, path: str, keep: int | None = None, time_limit: float = 600.0) -> str:
        """Write weights, optimizer and step to `path/step-<number>`, whole or not at all.

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
        self._need_model("save_checkpoint")
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
            optimizer: Whether the optimizer's moments and the step are taken over too; otherwise training starts anew
                from these weights.

        Returns:
            The step that training goes on from.

        Raises:
            CheckpointError: There is none, or it is of another model (the first weight that differs is named).
            NotInitialisedError: `init_model` has not run.
        """
        self._need_model("load_checkpoint")
        root = Path(path).absolute()
        found: int = load_engine("checkpoint").load(self._built, self.model, root, step, optimizer=optimizer)
        self.step = found if optimizer else 0
        return self.step

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def state_digest(self) -> str:
        """Hash the weights of the whole model; the same weights give the same text in every layout."""
        self._need_model("state_digest")
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
        self._need_model("load_hf")
        problem = reader = None
        try:
            reader = HuggingFaceReader(path, self.model)
        except CheckpointError as error:
            problem = str(error)
        load_engine("checkpoint").raise_together(f"reading {path}", problem)
        load_engine("model").set_weights(self._built, reader.read)  # type: ignore[union-attr] # or it has raised
        self.step = 0

    def _agree(self, batch: DataProto, further: tuple[str, ...] = ()) -> tuple[StepPlan, Rows]:
        return agree_on_step(self._read(batch, further), self.parallel, self.micro_batch_size, self.tensor_device)

    def _read(self, batch: DataProto, further: tuple[str, ...]) -> Rows | BatchError:
        # Returned, not raised: the other ranks have to hear of it before anyone leaves.
        try:
            return read_rows(_columns(batch), self._limits(), padding=_padding_rows(), extra=further)
        except BatchError as error:
            return error

    def _limits(self) -> RowLimits:
        parallel = self.parallel
        shares = (parallel.tensor if parallel.sequence_parallel else 1) * (
            2 * parallel.context if parallel.context > 1 else 1
        )
        return RowLimits(self.model.vocab_size, self.model.max_sequence_length, shares)

    def _need_model(self, method: str) -> None:
        if self._built is None:
            raise NotInitialisedError(f"{method} on rank {self.rank} needs the model; call init_model first")

    def _refuse_non_finite(self, where: str) -> None:
        if self.on_non_finite == "raise":
            raise NonFiniteLossError(where, self.step + 1)


def _check_options(micro_batch_size: int | None, on_non_finite: str) -> None:
    if micro_batch_size is not None and micro_batch_size < 1:
        raise ModelConfigError(f"micro_batch_size={micro_batch_size} must be 1 or more")
    if on_non_finite not in ("raise", "skip"):
        raise ModelConfigError(f"on_non_finite={on_non_finite!r} must be 'raise' or 'skip'")


def _columns(batch: DataProto) -> dict[str, torch.Tensor]:
    return {} if batch.batch is None else {str(name): batch.batch[name] for name in batch.batch.keys()}  # noqa: SIM118 TensorDict iterates over rows


def _padding_rows() -> int:
    try:
        return current_call().padding
    except NoCallError:
        return 0


def _row_losses(row_sums: torch.Tensor, rows: Rows, metrics: dict[str, Any]) -> DataProto:
    targets = rows.weights.sum(1)
    columns = {"loss": row_sums / targets.clamp(min=1.0), "targets": targets.long()}
    return DataProto.from_dict(tensors=columns, meta_info={"metrics": metrics})
