"""The gradients of log-probability and entropy against those of plain PyTorch; on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from fanfold.megatron import MegatronWorker
from fanfold.megatron.vocab import log_probs_and_entropy
from fanfold.worker import ClassWithInitArgs, WorkerGroup

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def group() -> Iterator[torch.distributed.ProcessGroup]:
    with WorkerGroup([1], ClassWithInitArgs(MegatronWorker)):
        assert torch.distributed.group.WORLD is not None
        yield torch.distributed.group.WORLD


@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, -0.4)])
def test_gradients_are_those_of_autograd(group: torch.distributed.ProcessGroup, weights: tuple[float, float]) -> None:
    torch.manual_seed(3)
    logits = (3 * torch.randn(2, 5, 11)).requires_grad_()
    labels = torch.randint(11, (2, 5))
    of_each = torch.randn(2, 5)

    log_probs, entropy = log_probs_and_entropy(logits, labels, group, temperature=0.7)
    (ours,) = torch.autograd.grad(((weights[0] * log_probs + weights[1] * entropy) * of_each).sum(), logits)

    plain = (logits.double() / 0.7).log_softmax(-1)
    plain_log_probs = plain.gather(-1, labels[..., None]).squeeze(-1)
    plain_entropy = -(plain.exp() * plain).sum(-1)
    wanted = ((weights[0] * plain_log_probs + weights[1] * plain_entropy) * of_each.double()).sum()
    (theirs,) = torch.autograd.grad(wanted, logits)
    assert float((log_probs - plain_log_probs).detach().abs().max()) < 1e-5
    assert float((entropy - plain_entropy).detach().abs().max()) < 1e-5
    assert float((ours - theirs).abs().max()) < 1e-5


def test_impossible_tokens_have_no_gradient_and_make_no_nan(group: torch.distributed.ProcessGroup) -> None:
    logits = torch.tensor([[[0.0, 1.0, -1e30]]], requires_grad=True)
    log_probs, entropy = log_probs_and_entropy(logits, torch.tensor([[1]]), group)
    (gradient,) = torch.autograd.grad(log_probs.sum() + entropy.sum(), logits)
    assert torch.isfinite(gradient).all()
    assert gradient[0, 0, 2] == 0.0
