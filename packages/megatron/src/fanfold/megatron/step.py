"""One training step over this rank's rows, with the same numbers in every layout.

The loss is the sum over all targets of the global batch, divided by their number, which the ranks agree on first: it
does not matter how rows are divided over replicas and micro-batches. B rows, S tokens, C context-parallel ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from fanfold.megatron.agreement import raise_together, share_numbers
from fanfold.megatron.errors import BatchError
from fanfold.megatron.layers import shard_positions

from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

if TYPE_CHECKING:
    from fanfold.megatron.model import Built
    from fanfold.megatron.rows import Rows
    from fanfold.megatron.topology import ParallelConfig

TokenLoss = Callable[[torch.Tensor, Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class StepPlan:
    """What the ranks agreed on before a step.

    Attributes:
        micro_batch_size: Rows in each micro-batch.
        micro_batches: How many each rank runs; a rank with fewer rows runs some without tokens.
        targets: Targets of the global batch.
    """

    micro_batch_size: int
    micro_batches: int
    targets: float


@dataclass(frozen=True)
class Losses:
    """What came of the forward passes.

    Attributes:
        row_sums: [B] float32, the sum of the losses of each row's targets.
        mean: Mean over the targets of the global batch.
        trouble: Where a loss was not finite, or an empty text.
    """

    row_sums: torch.Tensor
    mean: float
    trouble: str


def cross_entropy(log_probs: torch.Tensor, _columns: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss of each target: less its log-probability."""
    return -log_probs


def agree_on_step(
    rows: Rows | None,
    error: BatchError | None,
    parallel: ParallelConfig,
    micro_batch_size: int | None,
    device: torch.device,
) -> StepPlan:
    """Compare notes with all ranks before the first collective of the model.

    Args:
        rows: This rank's rows, or None where they cannot be used.
        error: Why they cannot be used.
        parallel: The layout.
        micro_batch_size: Rows in a micro-batch; all of a rank's rows, by pipeline stages, when left out.
        device: Where tensors of collectives live.

    Raises:
        BatchError: Some rank cannot use its rows, or the global batch has nothing to predict.
    """
    count = len(rows) if rows is not None else 0
    notes = share_numbers([float(error is not None), count, rows.target_count if rows else 0.0], device)
    raise_together(notes[:, 0], error)
    replicas = [ranks[0] for ranks in parallel.groups("tp", "cp", "pp")]
    targets = float(notes[replicas, 2].sum())
    if targets == 0:
        raise BatchError(
            f"the global batch of {int(notes[replicas, 1].sum())} rows has nothing to predict: "
            "every row has a single token, or a loss_mask that is 0 everywhere"
        )
    most_rows = max(1, int(notes[:, 1].max()))
    size = micro_batch_size or -(-most_rows // parallel.pipeline)
    return StepPlan(min(size, most_rows), -(-most_rows // min(size, most_rows)), targets)


def forward_backward(built: Built, rows: Rows, plan: StepPlan, loss: TokenLoss) -> Losses:
    """Run all micro-batches forward and backward and finish the gradients; weights stay as they are."""
    built.wrapped.train()
    built.wrapped.zero_grad_buffer()
    built.optimizer.zero_grad()
    reports = _schedule(built, rows, plan, partial(_forward, loss=loss, targets=plan.targets), forward_only=False)
    return _losses(reports, rows, plan, built)


def apply_gradients(built: Built) -> tuple[float, bool]:
    """Clip the gradients and step the optimizer, unless they are not finite.

    Returns:
        The gradient norm before clipping, and whether the weights changed. Every rank gets the same.
    """
    built.optimizer.prepare_grads()
    norm = float(built.optimizer.get_grad_norm())
    if not math.isfinite(norm):
        return norm, False
    done, _, _ = built.optimizer.step()
    return norm, bool(done)


def _schedule(
    built: Built, rows: Rows, plan: StepPlan, forward: Callable[..., Any], *, forward_only: bool
) -> list[Any]:
    run = get_forward_backward_func()
    result: list[Any] = run(
        forward_step_func=forward,
        data_iterator=_on_device(rows.micro_batches(plan.micro_batch_size, plan.micro_batches), built.device),
        model=[built.wrapped],
        num_microbatches=plan.micro_batches,
        seq_length=rows.tokens.shape[1],
        micro_batch_size=plan.micro_batch_size,
        forward_only=forward_only,
    )
    return result


def _on_device(micro_batches: Iterator[Rows], device: torch.device) -> Iterator[Rows]:
    group = parallel_state.get_context_parallel_group()
    for rows in micro_batches:
        here = shard_positions(rows.tokens.shape[1], group.size(), group.rank(), torch.device("cpu"))
        yield replace(
            rows,
            **{name: getattr(rows, name)[:, here].to(device) for name in ("tokens", "labels", "weights")},
            columns={name: column[:, here].to(device) for name, column in rows.columns.items()},
        )


def _forward(
    micro_batches: Iterator[Rows], module: Any, *, loss: TokenLoss, targets: float
) -> tuple[torch.Tensor, Any]:
    rows = next(micro_batches)
    positions = torch.arange(rows.tokens.shape[1], device=rows.tokens.device).expand_as(rows.tokens)
    negative_log_probs = module(rows.tokens, positions, None, labels=rows.labels)
    return negative_log_probs, partial(_sum_up, rows=rows, loss=loss, targets=targets)


def _sum_up(
    negative_log_probs: torch.Tensor, *, rows: Rows, loss: TokenLoss, targets: float
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    losses = loss(-negative_log_probs.float(), rows.columns)
    # Not losses * weights: a loss that is not finite where nothing counts would make the sum NaN.
    counted = torch.where(rows.weights > 0, losses * rows.weights, 0.0)
    row_sums = counted.sum(1)
    # Megatron's third form, with a count of tokens that nobody divides by (see model._finalize).
    count = torch.zeros((), dtype=torch.int, device=row_sums.device)
    return row_sums.sum() / targets, count, {"row_sums": row_sums.detach()}


def _losses(reports: Sequence[Any], rows: Rows, plan: StepPlan, built: Built) -> Losses:
    device, parallel = built.device, built.parallel
    sums = torch.zeros(plan.micro_batches * plan.micro_batch_size, device=device)
    if parallel_state.is_pipeline_last_stage():
        sums = torch.cat([report["row_sums"] for report in reports])
        torch.distributed.all_reduce(sums, group=parallel_state.get_context_parallel_group())
    torch.distributed.broadcast(
        sums,
        src=parallel_state.get_pipeline_model_parallel_last_rank(),
        group=parallel_state.get_pipeline_model_parallel_group(),
    )
    sums = sums.cpu()
    bad = (~torch.isfinite(sums)).nonzero().flatten()
    bad_micro_batch = int(bad[0]) // plan.micro_batch_size if len(bad) else -1
    notes = share_numbers([float(sums.sum(dtype=torch.float64)), bad_micro_batch], device)
    replicas = [rank for rank in range(parallel.world_size) if parallel.collects(rank)]
    trouble = ", ".join(
        f"the loss on rank {rank} in micro-batch {int(notes[rank, 1])} is not finite"
        for rank in replicas
        if notes[rank, 1] >= 0
    )
    return Losses(sums[: len(rows)], float(notes[replicas, 0].sum()) / plan.targets, trouble)
