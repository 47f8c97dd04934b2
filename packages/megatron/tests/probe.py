"""A trainer that also shows what is inside; here because ranks in other processes import it by name."""

from __future__ import annotations

import importlib
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import Dispatch, register
from fanfold.megatron import CrossEntropy, MegatronTrainer, ParallelConfig, in_megatron
from fanfold.megatron.weights import division_of
from fanfold.megatron.worker import load_engine

if TYPE_CHECKING:
    import torch


class ProbeTrainer(MegatronTrainer):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def gather_weights(self) -> dict[str, torch.Tensor]:
        """Return this rank's weights by their names in the whole model."""
        named = load_engine("model").named_weights(self._built.module)
        return {name: weight.detach().clone() for name, weight in named}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def gather_moments(self) -> dict[str, torch.Tensor]:
        """Return this rank's second moments by the names of the weights; not for a distributed optimizer."""
        (part,) = self._built.optimizer.chained_optimizers
        named = load_engine("model").named_weights(self._built.module)
        return {name: part.optimizer.state[weight]["exp_avg_sq"].clone() for name, weight in named}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def collect_weights(self, bucket_bytes: int) -> dict[str, torch.Tensor]:
        """Return all weights, as another role in this process would see them."""
        return {name: weight.clone() for name, weight in self.weights(bucket_bytes=bucket_bytes)}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def held_bytes(self) -> int:
        """Count the bytes below weights, gradients, masters and moments, each storage once."""
        built = self._built
        adams = [part.optimizer for part in built.optimizer.chained_optimizers]
        tensors = [weight.data for weight in built.module.parameters()]
        tensors += [weight.main_grad for weight in built.module.parameters()]
        tensors += [weight.data for adam in adams for group in adam.param_groups for weight in group["params"]]
        tensors += [value for adam in adams for moments in adam.state.values() for value in moments.values()]
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(storages.values())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def random_states(self) -> dict[str, torch.Tensor]:
        """Return what this rank's next step draws from."""
        return {name: state.clone() for name, state in self._built.random.items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def count_threads(self) -> int:
        """Count this process's threads, those of C++ too."""
        return len(list(Path("/proc/self/task").iterdir()))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def limit_file_size(self, limit: int) -> None:
        """Let no file of this process and its children grow over so many bytes: a disk that is full."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @in_megatron
    def first_gradients(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return this rank's gradients for rows of which it takes its share, without a step."""
        step = load_engine("step")
        share = batch.chunk(self.parallel.replicas)[self.data_parallel_rank]
        plan, rows = self._agree(share)
        step.forward_backward(self._built, rows, plan, CrossEntropy())
        named = load_engine("model").named_weights(self._built.module)
        return {name: weight.main_grad.detach().clone() for name, weight in named}


def writes_distributed_optimizers() -> bool:
    """Say whether this version of Megatron-Core can keep a distributed optimizer in a form that other layouts read."""
    module: Any = load_engine("model")  # imports Megatron-Core without its warnings
    assert module
    name = "megatron.core.optimizer.distrib_optimizer"
    loader = "load_parameter_state_from_fully_reshardable"
    return hasattr(importlib.import_module(name).DistributedOptimizer, loader)


def whole(layout: ParallelConfig, shards: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Put the weights or gradients of all ranks together."""
    weights: dict[str, torch.Tensor] = {}
    for ranks in layout.groups("tp"):
        for name in shards[ranks[0]]:
            weights[name] = division_of(name).join([shards[rank][name] for rank in ranks])
    return weights
