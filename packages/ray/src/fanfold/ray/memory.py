"""Which memory ran out: that of a host, of a GPU, or of the object store. Their errors look alike to who reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ray.exceptions import ObjectStoreFullError, OutOfDiskError, OutOfMemoryError

if TYPE_CHECKING:
    from fanfold.ray.answers import RankAnswer

Memory = Literal["host", "GPU", "object store"]

# What CUDA, HIP, torch, JAX and NPUs say, whatever class their errors have.
_SIGNS_OF_A_DEVICE = ("CUDA out of memory", "CUDA error: out of memory", "HIP out of memory", "NPU out of memory",
                      "RESOURCE_EXHAUSTED: Out of memory")  # fmt: skip


def memory_that_ran_out(error: BaseException) -> Memory | None:
    """Say which memory an error tells of; None where it tells of none."""
    if isinstance(error, (ObjectStoreFullError, OutOfDiskError)):
        return "object store"
    if isinstance(error, OutOfMemoryError):
        return "host"
    text = str(error)
    if _is_torch_out_of_memory(error) or any(sign in text for sign in _SIGNS_OF_A_DEVICE):
        return "GPU"
    return "host" if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text else None


def memory_note(error: BaseException, answer: RankAnswer | None) -> str:
    """Return a line for the report of a rank that ran out of memory, or nothing."""
    memory = memory_that_ran_out(error)
    if memory is None:
        return ""
    node = f" of node {answer.address}" if answer is not None else ""
    devices = f" {', '.join(answer.gpu_ids)}" if answer is not None and answer.gpu_ids and memory == "GPU" else ""
    return f"out of memory: that of the {memory}{devices}{node}"


def _is_torch_out_of_memory(error: BaseException) -> bool:
    names = {f"{cls.__module__.partition('.')[0]}.{cls.__name__}" for cls in type(error).__mro__}
    return "torch.OutOfMemoryError" in names
