"""Log-probabilities and entropies of rows under the current weights, without gradients. B rows, S positions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from fanfold.megatron import passes
from fanfold.megatron.vocab import log_probs_and_entropy

from megatron.core import parallel_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanfold.megatron.agreement import StepPlan
    from fanfold.megatron.model import Built
    from fanfold.megatron.rows import Rows


@torch.no_grad()
def score(built: Built, rows: Rows, plan: StepPlan, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Score this rank's rows.

    Returns:
        [B, S] log-probability of each label, and [B, S] entropy of what was predicted there, on every rank.
    """
    built.wrapped.eval()
    reports = passes.run(built, rows, plan, partial(_forward, temperature=temperature), backward=False)
    both = torch.zeros(2 * plan.padded_rows, rows.tokens.shape[1], device=built.device)
    if parallel_state.is_pipeline_last_stage():
        both = passes.whole_rows(torch.cat([part for kind in zip(*reports, strict=True) for part in kind]))
    log_probs, entropies = passes.to_all_stages(both).chunk(2)
    return log_probs[: len(rows)], entropies[: len(rows)]


def _forward(micro_batches: Iterator[Rows], module: Any, *, temperature: float) -> tuple[torch.Tensor, Any]:
    rows = next(micro_batches)
    return module(rows.tokens, passes.positions(rows), None), partial(_score, rows=rows, temperature=temperature)


def _score(logits: torch.Tensor, *, rows: Rows, temperature: float, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    group = parallel_state.get_tensor_model_parallel_group()
    return log_probs_and_entropy(logits, rows.labels, group, temperature=temperature)
