"""The one place that knows whether this is CUDA or CPU.

Megatron-Core spells "cuda" in its buffers, schedules and optimizers. `megatron_device` is what every call into it runs
inside: empty on CUDA; on CPU it answers "cuda" with the CPU by a `TorchFunctionMode` of the calling thread, and by
stand-ins for the plain functions that no mode can reach, which are put back on exit.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import torch
from fanfold.megatron.errors import DeviceError
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Request = Literal["auto", "cpu", "cuda"]
Attention = Literal["sdpa", "transformer_engine"]
_CPU = torch.device("cpu")
_DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class SeenDevice:
    """What one rank can use: the identity of its GPU, which two ranks may share, or None."""

    rank: int
    gpu: str | None


@dataclass(frozen=True)
class Wanted:
    """What a worker asks of its process.

    Attributes:
        device: `auto`, `cpu` or `cuda`.
        precision: `bf16`, `float32`, or None for what suits the device.
        seed: Seed of Megatron's random states.
        timeout: Seconds that ranks wait for each other.
    """

    device: str = "auto"
    precision: str | None = None
    seed: int = 0
    timeout: float = 600.0


@dataclass(frozen=True)
class DevicePlan:
    """Where and in which numbers all ranks of a group compute.

    Attributes:
        kind: `cpu` or `cuda`.
        backend: `nccl` or `gloo`.
        precision: `bf16` or `float32`.
    """

    kind: Literal["cpu", "cuda"]
    backend: Literal["nccl", "gloo"]
    precision: Literal["bf16", "float32"]

    @property
    def dtype(self) -> torch.dtype:
        """The number type of weights and activations."""
        return _DTYPES[self.precision]

    def describe(self) -> str:
        """Say it in a few words, as `cpu gloo float32`."""
        return f"{self.kind} {self.backend} {self.precision}"


def plan_device(
    seen: Sequence[SeenDevice], *, request: str = "auto", precision: str | None = None, pipeline: int = 1
) -> DevicePlan:
    """Decide for all ranks at once, from what each of them has; pure, so every rank comes to the same answer.

    Args:
        seen: What each rank has.
        request: `auto` takes CUDA where every rank has a GPU; `cpu` and `cuda` are orders.
        precision: `bf16` or `float32`; bf16 on CUDA and float32 on CPU when left out.
        pipeline: Pipeline stages: gloo moves no CUDA tensor from stage to stage.

    Raises:
        DeviceError: The order cannot be followed, with the ranks that stand against it.
    """
    if request not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device={request!r} must be 'auto', 'cpu' or 'cuda'")
    if precision not in (None, *_DTYPES):
        raise DeviceError(f"precision={precision!r} must be 'bf16' or 'float32'")
    without = [found.rank for found in seen if found.gpu is None]
    if request == "cuda" and without:
        raise DeviceError(
            f"device='cuda', and the ranks {_list(without)} have no GPU; give each rank one, or say device='auto'"
        )
    if request == "cpu" or without:
        return DevicePlan("cpu", "gloo", precision or "float32")  # type: ignore[arg-type] # checked above
    shared = _shared(seen)
    if shared and pipeline > 1:
        raise DeviceError(
            f"the ranks {_list(shared)} share a GPU, which NCCL refuses, and gloo sends no CUDA tensor between the "
            f"{pipeline} pipeline stages; give each rank a GPU, take pipeline=1, or hide the GPUs "
            "(CUDA_VISIBLE_DEVICES='')"
        )
    return DevicePlan("cuda", "gloo" if shared else "nccl", precision or "bf16")  # type: ignore[arg-type]


def plan_attention(plan: DevicePlan, *, request: str = "auto", installed: bool) -> Attention:
    """Decide what computes attention: in no case the kind that keeps a matrix of T x T floats.

    TransformerEngine's kernels without such a matrix are for CUDA and bf16 alone, and its context parallelism sends
    between ranks, which gloo does not do with CUDA tensors.

    Args:
        plan: Where the ranks compute.
        request: `auto` takes TransformerEngine where it is installed and can serve; the others are orders.
        installed: Whether TransformerEngine is.

    Raises:
        DeviceError: The order cannot be followed.
    """
    if request not in ("auto", "sdpa", "transformer_engine"):
        raise DeviceError(f"attention={request!r} must be 'auto', 'sdpa' or 'transformer_engine'")
    fits = plan == DevicePlan("cuda", "nccl", "bf16")
    if request == "transformer_engine" and not (fits and installed):
        reason = "it is not installed" if fits else f"it needs cuda nccl bf16, and the ranks have {plan.describe()}"
        raise DeviceError(f"attention='transformer_engine', and {reason}; say attention='auto' or 'sdpa'")
    return "transformer_engine" if fits and installed and request != "sdpa" else "sdpa"


def see_device(rank: int, local_rank: int, *, request: str) -> SeenDevice:
    """Look at what this rank has, and on CUDA make it the current device."""
    if request == "cpu" or not torch.cuda.is_available():
        return SeenDevice(rank, None)
    # A launcher shows every GPU to every rank, Ray shows each rank its own alone: this serves both.
    index = local_rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return SeenDevice(rank, str(torch.cuda.get_device_properties(index).uuid))


def tensor_device(plan: DevicePlan) -> torch.device:
    """Return the device that this rank's tensors live on."""
    return _CPU if plan.kind == "cpu" else torch.device("cuda", torch.cuda.current_device())


@contextmanager
def megatron_device(plan: DevicePlan) -> Iterator[None]:
    """Let calls into Megatron-Core in this block, on this thread, find the planned device under the name "cuda".

    Raises:
        DeviceError: The plan says CPU and CUDA is there: the stand-ins would mislead other code of this process.
    """
    if plan.kind == "cuda":
        yield
        return
    if torch.cuda.is_available():
        raise DeviceError(
            "Megatron on the CPU needs a process without visible GPUs, and this one sees "
            f"{torch.cuda.device_count()}; start the ranks with CUDA_VISIBLE_DEVICES='' (worker_env), "
            "or say device='cuda'"
        )
    with _stand_ins, _CudaMeansCpu():
        yield


class _CudaMeansCpu(TorchFunctionMode):
    """Answer "cuda" with the CPU in whatever torch function is called."""

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # The optimizers know a parameter by the text of its type, and refuse one whose text does not say cuda.
            return "torch.cuda." + func(*args).rpartition(".")[2]
        if func is torch.Tensor.to:
            args = tuple(_CPU if _names_cuda(value) else value for value in args)
        if _names_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)


class _StandIns:
    """Stand-ins for functions of `torch.cuda`, in place while any block is open."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = functions
        self._real: dict[str, Callable[..., Any]] = {}
        self._open = 0
        self._lock = Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._open += 1
            if self._open == 1:
                self._real = {name: getattr(torch.cuda, name) for name in self._functions}
                self._put(self._functions)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._put(self._real)

    def _put(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        for name, function in functions.items():
            setattr(torch.cuda, name, function)


class _NoStream:
    """The stream of a device that has none."""

    def wait_stream(self, _other: object) -> None: ...

    def synchronize(self) -> None: ...


_stand_ins = _StandIns(
    {
        "current_device": lambda: _CPU,
        "synchronize": lambda _device=None: None,
        "current_stream": lambda _device=None: _NoStream(),
    }
)


def _names_cuda(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.split(":")[0] == "cuda"


def _shared(seen: Sequence[SeenDevice]) -> list[int]:
    gpus = [found.gpu for found in seen]
    return [found.rank for found in seen if gpus.count(found.gpu) > 1]


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
