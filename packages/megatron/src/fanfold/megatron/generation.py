"""Continuing rows token by token, computing each whole row again for each token: for tests and small models.

B rows, N new tokens, V known tokens; tensor and data parallel only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from fanfold.megatron.rollout import Continuation

from megatron.core import parallel_state

if TYPE_CHECKING:
    from fanfold.megatron.model import Built
    from fanfold.megatron.rows import Rows
    from fanfold.megatron.sampling import Sampling


@torch.no_grad()
def generate(built: Built, rows: Rows, sampling: Sampling, noise: torch.Tensor, *, at_once: int | None) -> Continuation:
    """Continue this rank's rows; rows that have ended are not computed any more.

    Args:
        built: This rank's part of the model.
        rows: What is continued; padding rows have no tokens and stay empty.
        sampling: How tokens are drawn.
        noise: [B, N], the random numbers of the rows; the same on the ranks that share them.
        at_once: Most rows that go through the model at once; all when None.
    """
    built.wrapped.eval()
    multiple = built.parallel.tensor if built.parallel.sequence_parallel else 1
    count, new = len(rows), sampling.max_new_tokens
    made = Continuation(
        torch.zeros(count, new, dtype=torch.int64), torch.zeros(count, new, dtype=torch.int64), torch.zeros(count, new)
    )
    longest = int(rows.lengths.max()) + new if count else 0
    tokens = torch.zeros(count, -(-longest // multiple) * multiple, dtype=torch.int64)
    tokens[:, : rows.tokens.shape[1]] = rows.tokens[:, : tokens.shape[1]]
    lengths = rows.lengths.clone()
    stops = torch.tensor(sampling.stop_tokens, dtype=torch.int64)
    alive = (lengths > 0).nonzero().flatten()
    for step in range(new):
        if not len(alive):
            break
        parts = torch.split(alive, at_once or len(alive))
        logits = torch.cat([_last_logits(built, tokens[some], lengths[some], multiple) for some in parts])
        chosen, log_probs = _shared(*sampling.draw(logits, noise[alive, step]), built.device)
        made.tokens[alive, step], made.mask[alive, step], made.log_probs[alive, step] = chosen, 1, log_probs
        tokens[alive, lengths[alive]] = chosen
        lengths[alive] += 1
        alive = alive[~torch.isin(chosen, stops)]
    return made


def _last_logits(built: Built, tokens: torch.Tensor, lengths: torch.Tensor, multiple: int) -> torch.Tensor:
    """Return [B, V] on the CPU: what is predicted behind the end of each row."""
    width = -(-int(lengths.max()) // multiple) * multiple
    tokens = tokens[:, :width].to(built.device)
    places = torch.arange(width, device=built.device).expand_as(tokens)
    logits = built.wrapped(tokens, places, None)
    rows = torch.arange(len(tokens), device=built.device)
    last: torch.Tensor = logits[rows, (lengths - 1).to(built.device)].float().contiguous()
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1:
        return last.cpu()
    parts = [torch.empty_like(last) for _ in range(group.size())]
    torch.distributed.all_gather(parts, last, group=group)
    return torch.cat(parts, dim=-1).cpu()


def _shared(chosen: torch.Tensor, log_probs: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    # The ranks draw the same; that they go on with the same is not left to the last bit of a sum.
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1:
        return chosen, log_probs
    both = torch.stack([chosen.double(), log_probs.double()]).to(device)
    torch.distributed.broadcast(both, torch.distributed.get_process_group_ranks(group)[0], group=group)
    both = both.cpu()
    return both[0].long(), both[1].float()
