"""A worker that trains a language model: the driver sees one object, every rank does its part."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from fanfold.dataproto import DataProto
from fanfold.dispatch import NoCallError, current_call, make_nd_compute_dataproto_dispatch_fn, register
from fanfold.megatron.agreement import StepPlan, agree_on_step
from fanfold.megatron.errors import BatchError, HeadError, LayoutError, ModelConfigError, NonFiniteLossError
from fanfold.megatron.losses import CrossEntropy, TokenLoss
from fanfold.megatron.model_worker import ModelWorker
from fanfold.megatron.offload import PARTS
from fanfold.megatron.rollout import rollout_columns, row_seeds
from fanfold.megatron.rows import RowLimits, Rows, read_rows
from fanfold.megatron.worker import MESH, in_megatron, load_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from fanfold.megatron.sampling import Sampling

_BY_DATA_PARALLEL = make_nd_compute_dataproto_dispatch_fn(mesh_name=MESH)


class MegatronTrainer(ModelWorker):
    """A language model in any parallel layout, with the same numbers in every one.

    Args:
        micro_batch_size: Rows that go through the model at once; when left out, all rows of a rank, divided by the
            number of pipeline stages.
        on_non_finite: What to do with a step whose loss or gradient is NaN or infinite: `raise`, or `skip` the step and
            say so in its metrics. The weights stay as they were either way.
        worker: The arguments of `ModelWorker` (`model`, `optimizer`) and of `MegatronWorker` (`parallel`, `device`,
            `precision`, `seed`, `collective_timeout`).

    Raises:
        ModelConfigError: There is no such preset, or an option is unknown.
        LayoutError: The layout does not divide the model or the ranks.
    """

    def __init__(
        self, *, micro_batch_size: int | None = None, on_non_finite: Literal["raise", "skip"] = "raise", **worker: Any
    ) -> None:
        _check_options(micro_batch_size, on_non_finite)
        self.micro_batch_size = micro_batch_size
        self.on_non_finite = on_non_finite
        super().__init__(**worker)

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
            loss: What a target costs: the cross-entropy when left out, a `PolicyGradient`, for value models a
                `ValueLoss`, or your own `TokenLoss`.

        Returns:
            `loss` [B] float32, the mean over the row's targets (0 for a row without any), and `targets` [B]; in
            `meta_info["metrics"]` the `loss` over the global batch, `grad_norm` before clipping, `tokens` (its
            targets), `learning_rate`, `step`, `applied` (0 where the step was skipped), and what the loss reports. The
            metrics are of the global batch: a group, which joins the results of its replicas, gives each one as a list
            with the same number once for each replica; called on a rank itself it is that number.

        Raises:
            BatchError: Some rank's rows cannot be used, with the rank and the row; nothing has changed.
            NonFiniteLossError: The loss or the gradient is not finite; nothing has changed.
            HeadError: The loss is for the other kind of model.
            NotInitialisedError: `init_model` has not run.
            OffloadedError: Something of the model is on the host.
        """
        self._need_model("train_model", PARTS)
        step, loss = load_engine("step"), loss or CrossEntropy()
        self._need_head("train_model with this loss", getattr(loss, "head", self.model.head))
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
            HeadError: This is a value model.
            NotInitialisedError: `init_model` has not run.
            OffloadedError: The weights are on the host.
        """
        self._need_model("compute_log_prob")
        self._need_head("compute_log_prob", "language")
        if not temperature > 0:
            raise BatchError(f"temperature={temperature} must be above 0")
        plan, rows = self._agree(batch)
        both = load_engine("scoring").score(self._built, rows, plan, temperature)
        log_probs, entropy = (rows.at_callers_positions(values) for values in both)
        return DataProto.from_dict(tensors={"log_probs": log_probs, "entropy": entropy})

    @register(dispatch_mode=_BY_DATA_PARALLEL)
    @in_megatron
    def compute_values(self, batch: DataProto) -> DataProto:
        """Say what a value model (`ModelConfig(head="value")`) expects before each token; nothing changes.

        Args:
            batch: As for `train_model`.

        Returns:
            `values` [B, T] float32, at the place of each token what was said before it, as `log_probs` are; 0 for the
            first token of a row and for padding.

        Raises:
            BatchError: As for `train_model`.
            HeadError: This is a language model.
            NotInitialisedError: `init_model` has not run.
            OffloadedError: The weights are on the host.
        """
        self._need_model("compute_values")
        self._need_head("compute_values", "value")
        plan, rows = self._agree(batch)
        values = load_engine("scoring").value(self._built, rows, plan)
        return DataProto.from_dict(tensors={"values": rows.at_callers_positions(values)})

    @register(dispatch_mode=_BY_DATA_PARALLEL)
    @in_megatron
    def generate(self, batch: DataProto, sampling: Sampling) -> DataProto:
        """Continue rows, computing each row anew for each token: for tests and small models, not for serving.

        The random numbers of a row depend on the seed and on its place in the global batch, or on its own number in
        the column `seeds`: continuations are the same in every layout.

        Args:
            batch: `input_ids` [B, T] and `attention_mask` [B, T] as for `train_model`, padded at either end; and where
                given `seeds` [B] int64, instead of the rows' places.
            sampling: How tokens are drawn.

        Returns:
            `responses` [B, N] int64, `response_mask` [B, N] (1 where there is a token), `response_log_probs` [B, N]
            float32; and prompt with response as rows that can be scored and trained on: `input_ids`, `attention_mask`,
            `position_ids`, and `loss_mask` (1 for the response), each [B, T + N] int64.

        Raises:
            LayoutError: The layout has pipeline stages or context ranks.
            BatchError: As for `train_model`, and where rows would grow longer than the model allows.
            HeadError: This is a value model.
            NotInitialisedError: `init_model` has not run.
            OffloadedError: The weights are on the host.
        """
        self._need_model("generate")
        self._need_head("generate", "language")
        if self.parallel.pipeline > 1 or self.parallel.context > 1:
            raise LayoutError(
                f"generate runs on tensor and data parallel ranks; the layout is {self.parallel}. Load the weights "
                "into such a layout, or into an inference engine"
            )
        limits = self._limits()
        room = replace(limits, max_sequence_length=limits.max_sequence_length - sampling.max_new_tokens)
        columns = _columns(batch)
        plan, rows = self._agree(batch, limits=room, check=row_seeds)
        seeds = row_seeds(columns)
        places = range(plan.first_row, plan.first_row + len(rows))
        noise = sampling.noise(places if seeds is None else seeds)
        made = load_engine("generation").generate(self._built, rows, sampling, noise, at_once=self.micro_batch_size)
        return DataProto.from_dict(tensors=rollout_columns(columns["input_ids"], columns["attention_mask"], made))

    def _need_head(self, method: str, head: str) -> None:
        if head != self.model.head:
            raise HeadError(
                f"{method} needs a {head} model, and this is a {self.model.head} model; "
                f"say ModelConfig(head={head!r}) where it is made"
            )

    def _agree(
        self,
        batch: DataProto,
        further: tuple[str, ...] = (),
        limits: RowLimits | None = None,
        check: Callable[[Mapping[str, torch.Tensor]], object] | None = None,
    ) -> tuple[StepPlan, Rows]:
        columns = _columns(batch)
        rows: Rows | BatchError
        try:
            rows = read_rows(columns, limits or self._limits(), padding=_padding_rows(), extra=further)
            if check is not None:
                check(columns)
        except BatchError as error:
            rows = error  # not raised here: the other ranks have to hear of it before anyone leaves
        return agree_on_step(rows, self.parallel, self.micro_batch_size, self.tensor_device)

    def _limits(self) -> RowLimits:
        return RowLimits(self.model.vocab_size, self.model.max_sequence_length, self.parallel.pieces_of_a_row)

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
