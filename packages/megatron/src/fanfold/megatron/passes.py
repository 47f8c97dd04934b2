"""Running micro-batches through the model, in whatever schedule its pipeline needs. B rows, S tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from fanfold.megatron.layers import shard_positions

from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanfold.megatron.agreement import StepPlan
    from fanfold.megatron.model import Built
    from fanfold.megatron.rows import Rows


def run(built: Built, rows: Rows, plan: StepPlan, forward: Callable[..., Any], *, backward: bool) -> list[Any]:
    """Run all micro-batches of this rank.

    Args:
        built: This rank's part of the model.
        rows: This rank's rows.
        plan: What the ranks agreed on.
        forward: Megatron's forward step, over an iterator of `Rows` on the device.
        backward: Whether gradients are wanted.

    Returns:
        What the forward step's own function gave for each micro-batch; nothing on stages other than the last.
    """
    schedule = get_forward_backward_func()
    result: list[Any] = schedule(
        forward_step_func=forward,
        data_iterator=_on_device(rows.micro_batches(plan.micro_batch_size, plan.micro_batches), built.device),
        model=[built.wrapped],
        num_microbatches=plan.micro_batches,
        seq_length=rows.tokens.shape[1],
        micro_batch_size=plan.micro_batch_size,
        forward_only=not backward,
        collect_non_loss_data=not backward,
    )
    return result


def positions(rows: Rows) -> torch.Tensor:
    """Count positions for the model, which takes rotary positions from the place in the row anyway."""
    return torch.arange(rows.tokens.shape[1], device=rows.tokens.device).expand_as(rows.tokens)


def to_all_stages(values: torch.Tensor) -> torch.Tensor:
    """Send from the last pipeline stage to the others, in place, and return on the CPU."""
    torch.distributed.broadcast(
        values,
        src=parallel_state.get_pipeline_model_parallel_last_rank(),
        group=parallel_state.get_pipeline_model_parallel_group(),
    )
    return values.cpu()


def whole_rows(shards: torch.Tensor) -> torch.Tensor:
    """Put [B, S/C] of each context rank together to [B, S], on each of them."""
    group = parallel_state.get_context_parallel_group()
    whole = shards.new_zeros(shards.shape[0], shards.shape[1] * group.size())
    whole[:, shard_positions(whole.shape[1], group.size(), group.rank(), whole.device)] = shards
    torch.distributed.all_reduce(whole, group=group)
    return whole


def _on_device(micro_batches: Iterator[Rows], device: torch.device) -> Iterator[Rows]:
    group = parallel_state.get_context_parallel_group()
    for rows in micro_batches:
        here = shard_positions(rows.tokens.shape[1], group.size(), group.rank(), torch.device("cpu"))
        yield replace(
            rows,
            **{name: getattr(rows, name)[:, here].to(device) for name in ("tokens", "labels", "weights")},
            columns={name: column[:, here].to(device) for name, column in rows.columns.items()},
        )
