"""One training step over this rank's rows, with the same numbers in every layout.

The loss is the sum over all targets of the global batch, divided by their number, which the ranks agree on first: it
does not matter how rows are divided over replicas and micro-batches. b rows of a micro-batch, B of a rank, s positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from fanfold.megatron import passes, randomness
from fanfold.megatron.agreement import share_numbers
from fanfold.megatron.vocab import log_probs_and_entropy

from megatron.core import parallel_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fanfold.megatron.agreement import StepPlan
    from fanfold.megatron.losses import TokenLoss
    from fanfold.megatron.model import Built
    from fanfold.megatron.rows import Rows


@dataclass(frozen=True)
class Losses:
    """What came of the forward passes; the same on every rank but for the rows.

    Attributes:
        row_sums: [B] float32, the sum of the losses of each of this rank's rows.
        mean: Mean over the targets of the global batch.
        further: Means of what the loss function reports beside, by name.
        trouble: Where a loss was not finite, or an empty text.
    """

    row_sums: torch.Tensor
    mean: float
    further: Mapping[str, float]
    trouble: str


def forward_backward(built: Built, rows: Rows, plan: StepPlan, loss: TokenLoss) -> Losses:
    """Run all micro-batches forward and backward and finish the gradients; weights stay as they are."""
    built.wrapped.train()
    built.wrapped.zero_grad_buffer()
    built.optimizer.zero_grad()
    forward = partial(_forward, loss=loss, targets=plan.targets, head=built.head)
    with randomness.drawing_from(built.random):
        reports = passes.run(built, rows, plan, forward, backward=True)
    sums, names = _summed(reports, plan, built.device)
    return _losses(sums, names, len(rows), plan, built)


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


def _forward(
    micro_batches: Iterator[Rows], module: Any, *, loss: TokenLoss, targets: float, head: str
) -> tuple[torch.Tensor, Any]:
    rows = next(micro_batches)
    temperature, entropy = float(getattr(loss, "temperature", 1.0)), bool(getattr(loss, "reads_entropy", False))
    places = passes.positions(rows)
    if head == "value":
        output, read = module(rows.tokens, places, None), _values
    elif temperature != 1.0 or entropy:
        output, read = module(rows.tokens, places, None), partial(_scores, temperature=temperature, entropy=entropy)
    else:
        output, read = module(rows.tokens, places, None, labels=rows.labels), _log_probs
    return output, partial(_sum_up, read=read, rows=rows, loss=loss, targets=targets)


def _values(output: torch.Tensor, _rows: Rows) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return output.squeeze(-1).float(), {}


def _log_probs(output: torch.Tensor, _rows: Rows) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return -output.float(), {}


def _scores(
    output: torch.Tensor, rows: Rows, *, temperature: float, entropy: bool
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    group = parallel_state.get_tensor_model_parallel_group()
    log_probs, of_all = log_probs_and_entropy(output, rows.labels, group, temperature=temperature)
    return log_probs, {"entropy": of_all} if entropy else {}


def _sum_up(
    output: torch.Tensor, *, read: Callable[..., Any], rows: Rows, loss: TokenLoss, targets: float
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    outputs, added = read(output, rows)
    losses, further = loss(outputs, {**rows.columns, **added})
    row_sums = _counted(losses, rows).sum(1)
    # Megatron's third form, with a count of tokens that nobody divides by (see model._finalize).
    count = torch.zeros((), dtype=torch.int, device=row_sums.device)
    report = {name: _counted(values.detach(), rows).sum() for name, values in further.items()}
    return row_sums.sum() / targets, count, {**report, "": row_sums.detach()}


def _counted(values: torch.Tensor, rows: Rows) -> torch.Tensor:
    # Not values * weights: one that is not finite where nothing counts would make the sum NaN.
    return torch.where(rows.weights > 0, values * rows.weights, 0.0)


def _summed(reports: Sequence[Any], plan: StepPlan, device: torch.device) -> tuple[torch.Tensor, list[str]]:
    """Return the loss of each row this rank ran and the sums of further values, on all ranks that share the rows."""
    names = sorted(name for name in reports[0] if name) if reports else []
    counted: list[list[str]] = [names]
    torch.distributed.broadcast_object_list(
        counted,
        src=parallel_state.get_pipeline_model_parallel_last_rank(),
        group=parallel_state.get_pipeline_model_parallel_group(),
    )
    sums = torch.zeros(plan.padded_rows + len(counted[0]), device=device)
    if reports:
        further = [torch.stack([report[name] for report in reports]).sum() for name in names]
        sums = torch.cat([*(report[""] for report in reports), *(value[None] for value in further)])
        torch.distributed.all_reduce(sums, group=parallel_state.get_context_parallel_group())
    return passes.to_all_stages(sums), counted[0]


def _losses(sums: torch.Tensor, names: Sequence[str], rows: int, plan: StepPlan, built: Built) -> Losses:
    row_sums, further = sums[: plan.padded_rows], sums[plan.padded_rows :]
    bad = (~torch.isfinite(row_sums)).nonzero().flatten()
    bad_micro_batch = int(bad[0]) // plan.micro_batch_size if len(bad) else -1
    mine = [bad_micro_batch, float(row_sums.sum(dtype=torch.float64)), *further.tolist()]
    notes = share_numbers(mine, built.device)
    replicas = [rank for rank in range(built.parallel.world_size) if built.parallel.collects(rank)]
    means = notes[replicas, 1:].sum(0) / plan.targets
    trouble = ", ".join(
        f"the loss on rank {rank} in micro-batch {int(notes[rank, 0])} is not finite"
        for rank in replicas
        if notes[rank, 0] >= 0
    )
    return Losses(row_sums[:rows], float(means[0]), dict(zip(names, means[1:].tolist(), strict=True)), trouble)
