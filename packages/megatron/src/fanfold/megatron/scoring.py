"""What the current weights say of rows, without gradients. B rows, S positions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from fanfold.megatron import passes
from fanfold.megatron.vocab import log_probs_and_entropy

from megatron.core import parallel_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanfold.megatron.agreement import StepPlan
    from fanfold.megatron.model import Built
    from fanfold.megatron.rows import Rows


def score(built: Built, rows: Rows, plan: StepPlan, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Score this rank's rows.

    Returns:
        [B, S] log-probability of each label, and [B, S] entropy of what was predicted there, on every rank.
    """

    def both(logits: torch.Tensor, rows: Rows) -> tuple[torch.Tensor, ...]:
        group = parallel_state.get_tensor_model_parallel_group()
        return log_probs_and_entropy(logits, rows.labels, group, temperature=temperature)

    log_probs, entropies = _over_rows(built, rows, plan, both, kinds=2)
    return log_probs, entropies


def value(built: Built, rows: Rows, plan: StepPlan) -> torch.Tensor:
    """Return [B, S], what a value model says before each label, on every rank."""
    (values,) = _over_rows(built, rows, plan, lambda output, _rows: (output.squeeze(-1).float(),), kinds=1)
    return values


@torch.no_grad()
def _over_rows(
    built: Built,
    rows: Rows,
    plan: StepPlan,
    read: Callable[[torch.Tensor, Rows], tuple[torch.Tensor, ...]],
    *,
    kinds: int,
) -> list[torch.Tensor]:
    """Return several [B, S] that are read off the model's output of each micro-batch."""
    built.wrapped.eval()
    reports = passes.run(built, rows, plan, partial(_forward, read=read), backward=False)
    all_kinds = torch.zeros(kinds * plan.padded_rows, rows.tokens.shape[1], device=built.device)
    if parallel_state.is_pipeline_last_stage():
        all_kinds = passes.whole_rows(torch.cat([part for kind in zip(*reports, strict=True) for part in kind]))
    return [each[: len(rows)] for each in passes.to_all_stages(all_kinds).chunk(kinds)]


def _forward(micro_batches: Iterator[Rows], module: Any, *, read: Callable[..., Any]) -> tuple[torch.Tensor, Any]:
    rows = next(micro_batches)

    def report(output: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
        parts: tuple[torch.Tensor, ...] = read(output, rows)
        return parts

    return module(rows.tokens, passes.positions(rows), None), report
