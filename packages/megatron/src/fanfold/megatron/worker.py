"""What runs on one rank of a Megatron group: process groups, parallel state, device, mesh."""

from __future__ import annotations

import gc
import importlib
import warnings
import weakref
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from fanfold.megatron.device import DevicePlan, Wanted, megatron_device, tensor_device
from fanfold.megatron.errors import LayoutClashError, LayoutError
from fanfold.megatron.topology import ParallelConfig
from fanfold.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    import torch
    from fanfold.worker import RankInfo

MESH = "train"


P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", bound="MegatronWorker")


class MegatronWorker(Worker):
    """A rank of a parallel layout, with Megatron-Core's process groups; derive from it.

    The mesh `train` divides rows over the data-parallel ranks and collects from the last pipeline stage's first tensor
    and context rank. Roles that share a process share the process groups, and must have the same layout.

    Args:
        parallel: The layout; data parallel over all ranks when left out.
        device: `auto` (CUDA where every rank has a GPU, else the CPU), `cpu` or `cuda`.
        precision: `bf16` or `float32`; bf16 on CUDA and float32 on the CPU when left out.
        seed: Seed of all random states.
        collective_timeout: Seconds that ranks wait for each other, at the start and in each collective.

    Raises:
        LayoutError: The layout does not fit the number of ranks.
        LayoutClashError: This process has process groups of another layout.
        DeviceError: The ranks do not have the device that was asked for.
    """

    def __init__(
        self,
        *,
        parallel: ParallelConfig | None = None,
        device: str = "auto",
        precision: str | None = None,
        seed: int = 0,
        collective_timeout: float = 600.0,
    ) -> None:
        super().__init__()
        self._refuse_shared_process()
        self.parallel = (parallel or ParallelConfig()).for_world(self.world_size)
        self.seed = seed
        self.data_parallel_rank = self.parallel.coordinates(self.rank)["dp"]
        self._register_dispatch_collect_info(MESH, self.data_parallel_rank, self.parallel.collects(self.rank))
        self.device: DevicePlan = _groups.enter(
            self, self.parallel, Wanted(device, precision, seed, collective_timeout)
        )

    @classmethod
    def check_before_start(cls, world_size: int, arguments: Mapping[str, Any]) -> None:
        """Refuse a layout that does not fit the number of ranks, where the driver makes the group.

        Raises:
            LayoutError: Names both.
        """
        super().check_before_start(world_size, arguments)
        if isinstance(arguments.get("parallel"), ParallelConfig):
            arguments["parallel"].for_world(world_size)

    @property
    def tensor_device(self) -> torch.device:
        """The device that this rank's tensors live on."""
        return tensor_device(self.device)

    @contextmanager
    def megatron(self) -> Iterator[None]:
        """Run calls into Megatron-Core inside this block: on the CPU they would ask for CUDA otherwise."""
        with megatron_device(self.device):
            yield

    def close(self) -> None:
        """Let go of the process groups; the last role of a process ends them. Closing twice is fine."""
        _groups.leave(self)

    def on_stop(self) -> None:
        """Let go of the process groups when the group of workers ends, on every backend."""
        self.close()

    def _refuse_shared_process(self) -> None:
        if self.rank_info.backend == "inline" and self.world_size > 1:
            raise LayoutError(
                f"{self.world_size} ranks of {type(self).__name__} in one process: Megatron has one set of process "
                "groups in a process; use one inline rank, or a backend with a process for each rank"
            )


def in_megatron(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R]:
    """Run a worker's method where calls into Megatron-Core find their device."""

    @wraps(method)
    def inside(self: W, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.megatron():
            return method(self, *args, **kwargs)

    return inside


@contextmanager
def without_megatrons_warnings() -> Iterator[None]:
    """Leave out what Megatron-Core says when it is imported and when a model is made, and a user cannot change.

    That TransformerEngine and Apex, which are optional, are absent, and that defaults of its own are deprecated.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load_engine(name: str) -> ModuleType:
    """Import one of the modules that import Megatron-Core.

    Late on purpose: Megatron-Core takes 5 s and 350 MiB to import. A driver that only binds and sends a class must not
    pay for it; a rank pays once, when its worker is made.
    """
    with without_megatrons_warnings():
        return importlib.import_module(f"fanfold.megatron.{name}")


class _ProcessGroups:
    """The process groups of this process, which has one set whatever number of workers live in it."""

    def __init__(self) -> None:
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._asked: tuple[Any, ...] = ()
        self._plan: DevicePlan | None = None

    def enter(self, worker: Any, parallel: ParallelConfig, wanted: Wanted) -> DevicePlan:
        asked = (parallel, wanted.device, wanted.precision, _meeting(worker.rank_info))
        if self._plan is not None and asked != self._asked:
            self._make_room(worker, asked)
        if self._plan is None:
            self._plan = load_engine("parallel").start(parallel, worker.rank_info, wanted)
            self._asked = asked
        self._users.add(worker)
        return self._plan

    def leave(self, worker: Any) -> None:
        if worker in self._users:
            self._users.remove(worker)
            if not self._users:
                self._end()

    def _make_room(self, worker: Any, asked: tuple[Any, ...]) -> None:
        gc.collect()  # a worker that was let go of may lie in a cycle with its model
        if self._users:
            raise LayoutClashError(
                f"this process runs Megatron with {_text(self._asked)}, and {type(worker).__name__} asks for "
                f"{_text(asked)}; roles that share processes need the same parallel=, device= and precision="
            )
        self._end()

    def _end(self) -> None:
        self._plan, self._asked = None, ()
        load_engine("parallel").stop()


_groups = _ProcessGroups()


def _meeting(info: RankInfo) -> str:
    # Process groups that are left of another group would wait for ranks that are gone; one rank waits for nobody.
    return "" if info.world_size == 1 else f" at {info.master_addr}:{info.master_port}"


def _text(asked: tuple[Any, ...]) -> str:
    parallel, device, precision, meeting = asked
    return f"{parallel}, device={device!r}, precision={precision!r}{meeting}"
