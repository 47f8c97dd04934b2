"""Moving weights, gradients and moments to the host and back, without a tensor becoming another one.

What moves is the storage below the tensors: it is copied to the host and made empty, and filled again on the way back.
Views, and Megatron's buffers that weights and gradients are cut from, stay what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fanfold.megatron.model import Built

PARTS = ("weights", "gradients", "optimizer")


class Host:
    """What one rank has on the host, by part."""

    def __init__(self) -> None:
        self._moved: dict[str, list[tuple[torch.UntypedStorage, int, torch.Tensor | None]]] = {}

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts that are on the host, in the order of `PARTS`."""
        return tuple(part for part in PARTS if part in self._moved)

    def take(self, built: Built, parts: Iterable[str]) -> int:
        """Move parts to the host; those that are there stay there. Gradients are dropped: each step makes new ones.

        Returns:
            Bytes that are free now on the device.
        """
        freed = 0
        for part in (part for part in PARTS if part in parts and part not in self._moved):
            moved = []
            for storage in _storages(built, part):
                kept = None if part == "gradients" else _to_host(storage)
                moved.append((storage, storage.nbytes(), kept))
                freed += storage.nbytes()
                storage.resize_(0)
            self._moved[part] = moved
        if built.device.type == "cuda":
            torch.cuda.empty_cache()
        return freed

    def give_back(self, parts: Iterable[str]) -> int:
        """Move parts back to the device.

        Returns:
            Bytes that are in use again on the device.
        """
        used = 0
        for part in (part for part in PARTS if part in parts and part in self._moved):
            for storage, size, kept in self._moved.pop(part):
                storage.resize_(size)
                used += size
                _bytes_of(storage).zero_() if kept is None else _bytes_of(storage).copy_(kept)
        return used


def _tensors(built: Built, part: str) -> Iterator[torch.Tensor]:
    if part == "weights":
        yield from (weight.data for weight in built.module.parameters())
    elif part == "gradients":
        for buffer in [*built.wrapped.buffers, *built.wrapped.expert_parallel_buffers]:
            yield buffer.grad_data
    else:
        for optimizer in _adams(built.optimizer):
            for group in optimizer.param_groups:
                yield from (weight.data for weight in group["params"])  # the float32 masters of bf16 weights
            for moments in optimizer.state.values():
                yield from (value for value in moments.values() if isinstance(value, torch.Tensor))


def _adams(optimizer: Any) -> list[Any]:
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return [part.optimizer for part in parts if part.optimizer is not None]


def _storages(built: Built, part: str) -> list[torch.UntypedStorage]:
    """Return the storages below the tensors of a part that lie on the device, each once."""
    found = _by_address(_tensors(built, part), built.device)
    if part == "optimizer":  # whose parameters are the weights themselves where these are float32
        for address in _by_address(_tensors(built, "weights"), built.device):
            found.pop(address, None)
    return [storage for storage in found.values() if storage.nbytes()]


def _by_address(tensors: Iterable[torch.Tensor], device: torch.device) -> dict[int, torch.UntypedStorage]:
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.device == device)
    return {storage.data_ptr(): storage for storage in storages}


def _to_host(storage: torch.UntypedStorage) -> torch.Tensor:
    kept = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
    return kept.copy_(_bytes_of(storage))


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
