"""The random numbers of training: each model has its own, whatever else draws in its process.

Dropout, and a loss that draws, read torch's generators; `drawing_from` puts a model's states there for the time of a
step. They differ between pipeline stages, replicas and context ranks; tensor-parallel ranks share the first ones, since
they drop the same of what they all hold, and have streams of their own for what is divided among them.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from megatron.core import tensor_parallel
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker, initialize_rng_tracker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fanfold.megatron.device import DevicePlan

_HOST, _DEVICE, _STREAM = "host", "device", "stream "
_SHARED_AXES, _ALL_AXES = ("pp", "dp", "cp"), ("pp", "dp", "cp", "tp")


def start(seed: int, plan: DevicePlan) -> None:
    """Seed Megatron's random states of this process, from which it initialises weights on CUDA."""
    initialize_rng_tracker(force_reset=True)
    if plan.kind == "cpu":
        # Megatron's trackers keep states of CUDA's generators, or none at all; it has no door for another one.
        tensor_parallel.random._CUDA_RNG_STATE_TRACKER = _CpuTracker()  # noqa: SLF001
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def seeded(seed: int, coordinates: Mapping[str, int], device: torch.device, step: int = 0) -> dict[str, torch.Tensor]:
    """Make the states of one rank, from nothing but these arguments.

    Args:
        seed: The model's.
        coordinates: The rank's place on each axis.
        device: Where the rank computes.
        step: The step that training goes on from, so that it does not draw again what it drew before.
    """
    shared, own = ("/".join(str(coordinates[axis]) for axis in axes) for axes in (_SHARED_AXES, _ALL_AXES))
    states = {_HOST: _state(f"{seed}/{step}/{shared}", torch.device("cpu"))}
    if device.type == "cuda":
        states[_DEVICE] = _state(f"{seed}/{step}/{shared}", device)
    names = tensor_parallel.get_cuda_rng_tracker().get_states()
    return states | {_STREAM + name: _state(f"{seed}/{step}/{own}/{name}", device) for name in names}


@contextmanager
def drawing_from(states: dict[str, torch.Tensor]) -> Iterator[None]:
    """Let what draws in this block draw from these states, which move on; the process's own are put back."""
    outside = _current(states)
    _put(states)
    try:
        yield
    finally:
        states.update(_current(states))
        _put(outside)


def _current(like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    states = {_HOST: torch.get_rng_state()}
    if _DEVICE in like:
        states[_DEVICE] = torch.cuda.get_rng_state()
    streams = tensor_parallel.get_cuda_rng_tracker().get_states()
    return states | {_STREAM + name: state for name, state in streams.items()}


def _put(states: Mapping[str, torch.Tensor]) -> None:
    torch.set_rng_state(states[_HOST])
    if _DEVICE in states:
        torch.cuda.set_rng_state(states[_DEVICE])
    streams = {name.removeprefix(_STREAM): state for name, state in states.items() if name.startswith(_STREAM)}
    tensor_parallel.get_cuda_rng_tracker().set_states(streams)


def _state(text: str, device: torch.device) -> torch.Tensor:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    return torch.Generator(device).manual_seed(number).get_state()


class _CpuTracker(CudaRNGStatesTracker):  # type: ignore[misc]  # Megatron-Core has no types
    """Megatron's named random streams, of the CPU's generator."""

    _drawn_from = ""

    def add(self, name: str, seed: int) -> None:
        self._is_initialized = True
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        if self._drawn_from == name:
            yield  # a part of what draws from it already
            return
        state_outside, name_outside = torch.get_rng_state(), self._drawn_from
        torch.set_rng_state(self.states_[name])
        self._drawn_from = name
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(state_outside)
            self._drawn_from = name_outside
