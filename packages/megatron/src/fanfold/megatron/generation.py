"""Continuing rows token by token, computing each whole row again for each token: for tests and small models.

B rows, N new tokens, V known tokens; tensor and data parallel only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from megatron.core import parallel_state

if TYPE_CHECKING:
    from fanfold.megatron.model import Built
    from fanfold.megatron.rows import Rows
    from fanfold.megatron.sampling import Sampling


@torch.no_grad()
def generate(
    built: Built, rows: Rows, sampling: Sampling, multiple: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Continue this rank's rows.

    Args:
        built: This rank's part of the model.
        rows: What is continued.
        sampling: How tokens are drawn.
        multiple: The length of what goes through the model is a multiple of this.
        generator: Where randomness comes from; the same on the ranks that share the rows.

    Returns:
        [B, N] tokens, 0 behind the end; [B, N] 1 where there is one; [B, N] float32 log-probabilities.
    """
    built.wrapped.eval()
    count, new = len(rows), sampling.max_new_tokens
    longest = int(rows.lengths.max()) + new if count else 1
    tokens = torch.zeros(count, -(-longest // multiple) * multiple, dtype=torch.int64)
    tokens[:, : min(tokens.shape[1], rows.tokens.shape[1])] = rows.tokens[:, : tokens.shape[1]]
    lengths, alive = rows.lengths.clone(), torch.ones(count, dtype=torch.bool)
    drawn, there, log_probs = tokens.new_zeros(count, new), tokens.new_zeros(count, new), torch.zeros(count, new)
    stops = torch.tensor(sampling.stop_tokens, dtype=torch.int64)
    for step in range(new if count else 0):
        if not bool(alive.any()):
            break
        width = -(-int(lengths.max()) // multiple) * multiple
        logits = _last_logits(built, tokens[:, :width], lengths)
        chosen, chosen_log_probs = _shared(*sampling.draw(logits, generator), built.device)
        drawn[alive, step], there[alive, step] = chosen[alive], 1
        log_probs[alive, step] = chosen_log_probs[alive]
        tokens[alive, lengths[alive]] = chosen[alive]
        lengths[alive] += 1
        alive &= ~torch.isin(chosen, stops)
    return drawn, there, log_probs


def _last_logits(built: Built, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return [B, V] on the CPU: what is predicted behind the end of each row."""
    tokens = tokens.to(built.device)
    places = torch.arange(tokens.shape[1], device=built.device).expand_as(tokens)
    logits = built.wrapped(tokens, places, None)
    last = logits[torch.arange(len(tokens), device=built.device), (lengths - 1).to(built.device)].float().contiguous()
    group = parallel_state.get_tensor_model_parallel_group()
    parts = [torch.empty_like(last) for _ in range(group.size())]
    torch.distributed.all_gather(parts, last, group=group)
    return torch.cat(parts, dim=-1).cpu()


def _shared(chosen: torch.Tensor, log_probs: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    # The ranks draw the same; that they go on with the same is not left to the last bit of a sum.
    group = parallel_state.get_tensor_model_parallel_group()
    both = torch.stack([chosen.double(), log_probs.double()]).to(device)
    torch.distributed.broadcast(both, torch.distributed.get_process_group_ranks(group)[0], group=group)
    both = both.cpu()
    return both[0].long(), both[1].float()
