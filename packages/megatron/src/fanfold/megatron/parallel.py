"""The process groups of a rank: started from a layout, ended again, over the supported range of Megatron-Core."""

from __future__ import annotations

import gc
import inspect
import json
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from fanfold.megatron import randomness
from fanfold.megatron.device import DevicePlan, SeenDevice, Wanted, megatron_device, plan_device, see_device
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]  # documented there
from torch.distributed.rendezvous import rendezvous

from megatron.core import parallel_state
from megatron.core.models.common.embeddings import RotaryEmbedding, YarnRotaryEmbedding

if TYPE_CHECKING:
    from fanfold.megatron.topology import ParallelConfig
    from fanfold.worker import RankInfo


def start(parallel: ParallelConfig, info: RankInfo, wanted: Wanted) -> DevicePlan:
    """Agree with the other ranks on the device, make the process groups and seed the random states.

    Raises:
        DeviceError: The ranks do not have what was asked for.
        torch.distributed.DistStoreError: Not all ranks came within the limit.
    """
    if parallel.tensor > 1:
        # Megatron's overlap of tensor-parallel communication counts on it; CUDA reads it when it starts.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    timeout = timedelta(seconds=wanted.timeout)
    store = _rendezvous(info, timeout)
    seen = _exchange(store, see_device(info.rank, info.local_rank, request=wanted.device), info.world_size)
    plan = plan_device(seen, request=wanted.device, precision=wanted.precision, pipeline=parallel.pipeline)
    with megatron_device(plan):
        torch.distributed.init_process_group(
            plan.backend, store=store, rank=info.rank, world_size=info.world_size, timeout=timeout
        )
        _start_groups(parallel, timeout)
        randomness.start(wanted.seed, plan)
    return plan


def stop() -> None:
    """End the process groups of this process; calling it twice is fine."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    _forget_models()
    # gloo's threads end with the last reference to a group, and models lie in cycles with theirs.
    gc.collect()


def _forget_models() -> None:
    # A cache on a method holds the module whose method it is, with its process group and that group's threads.
    for embedding in (RotaryEmbedding, YarnRotaryEmbedding):
        for function in vars(embedding).values():
            if hasattr(function, "cache_clear"):
                function.cache_clear()


def accepted(function: Any, **keywords: Any) -> dict[str, Any]:
    """Return those keywords that this version of a Megatron function or class takes."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in keywords.items() if name in known}


def _rendezvous(info: RankInfo, timeout: timedelta) -> Store:
    if info.world_size == 1:
        return HashStore()
    store, _, _ = next(rendezvous("env://", rank=info.rank, world_size=info.world_size, timeout=timeout))
    store.set_timeout(timeout)
    return PrefixStore("fanfold.megatron", store)


def _exchange(store: Store, mine: SeenDevice, world_size: int) -> list[SeenDevice]:
    store.set(f"device/{mine.rank}", json.dumps(mine.gpu))
    return [SeenDevice(rank, json.loads(store.get(f"device/{rank}"))) for rank in range(world_size)]


def _start_groups(parallel: ParallelConfig, timeout: timedelta) -> None:
    # By keyword only: the order of the parameters differs between versions.
    parallel_state.initialize_model_parallel(
        **accepted(
            parallel_state.initialize_model_parallel,
            tensor_model_parallel_size=parallel.tensor,
            pipeline_model_parallel_size=parallel.pipeline,
            context_parallel_size=parallel.context,
            expert_model_parallel_size=parallel.expert,
            order=parallel.order,
            distributed_timeout_minutes=max(1, round(timeout.total_seconds() / 60)),
            # A second set of gloo groups would cost start-up time; nothing here uses them.
            create_gloo_process_groups=False,
        )
    )
