# ruff: noqa: INP001  what is measured: the same work by three sides, all with the same methods
"""The sides of the data plane's bench, importable by their ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch
from fanfold.dataproto import DataProto
from fanfold.dispatch import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from fanfold.ray import RayClassWithInitArgs, RayWorkerGroup, stage
from fanfold.worker import Worker
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

if TYPE_CHECKING:
    from fanfold.ray import RayResourcePool

Tensors = dict[str, torch.Tensor]
Objects = dict[str, list[str]]
ND = make_nd_compute_dataproto_dispatch_fn("m")


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) / 1e3


def resident() -> float:
    """Return the resident memory of this process in MB."""
    return _status("VmRSS")


def own_memory() -> float:
    """Return the resident memory that is this process's alone, in MB."""
    return _status("RssAnon")


def touched(tensors: Any) -> float:
    """Read one column."""
    return float(tensors["c0"].sum())


def written(tensors: Any) -> float:
    """Write into every column."""
    for tensor in tensors.values():
        tensor.add_(1)
    return float(tensors["c0"][0, 0])


class Reads(Worker):
    """fanfold's ranks."""

    def __init__(self, tensor_parallel: int) -> None:
        super().__init__()
        place = self.rank % tensor_parallel
        self.register_mesh_rank("m", self.rank // tensor_parallel, collect=place == 0)

    @register(dispatch_mode=ND)
    def reads(self, batch: DataProto) -> list[float]:
        return [float(batch["c0"].sum())]

    @register(dispatch_mode=ND, reads=["c0"])
    def reads_one(self, batch: DataProto) -> list[float]:
        return [float(batch["c0"].sum())]

    @register(dispatch_mode=ND)
    def writes(self, batch: DataProto) -> list[float]:
        return [written(batch.batch)]

    @register(dispatch_mode=ND, blocking=False)
    def makes(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict({"c0": batch["c0"] + 1, "c1": batch["c1"] + 1, "c2": batch["c2"] + 1})

    @register(dispatch_mode=ND, blocking=False)
    def widens(self, batch: DataProto, tokens: int) -> DataProto:
        names = list(batch.select().batch.keys())  # type: ignore[union-attr]
        return DataProto.from_dict({name: batch[name].expand(-1, tokens).contiguous() for name in names})

    @register(dispatch_mode=ND)
    def grows(self, batch: DataProto) -> list[float]:
        own, before = batch.nbytes / 1e6, own_memory()
        written(batch.batch)
        return [own_memory() - before, own]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def echo(self, value: int) -> int:
        return value


class Fanfold:
    """A group."""

    name = "fanfold"

    def __init__(self, pool: RayResourcePool, data_parallel: int) -> None:
        ranks = len(pool.bundles())
        self.group: Any = RayWorkerGroup(pool, RayClassWithInitArgs(Reads, ranks // data_parallel))
        self.tiny(0)

    def batch(self, tensors: Tensors, objects: Objects) -> Any:
        return DataProto.from_dict(tensors, objects)

    def staged(self, batch: Any) -> Any:
        return stage(batch)

    def call(self, how: str, batch: Any) -> Any:
        return getattr(self.group, how)(batch)

    def chain(self, batch: Any) -> Any:
        return self.group.reads(self.group.makes(batch))

    def tiny(self, value: int) -> Any:
        return self.group.echo(value)

    def pass_on(self, batch: Any, tokens: int) -> None:
        self.group.reads(self.group.widens(batch, tokens))

    def grown(self, batch: Any, tokens: int) -> tuple[float, float]:
        grown, own = self.group.grows(self.group.widens(batch, tokens))[0]
        return grown, own

    def close(self) -> None:
        self.group.close()


class Bare:
    """An actor as people write it by hand."""

    def reads(self, batch: Any) -> float:
        return float(torch.from_numpy(batch["c0"]).sum())

    def writes(self, batch: Any) -> float:
        return written({name: torch.from_numpy(np.array(array)) for name, array in batch.items() if name != "uid"})

    def makes(self, batch: Any) -> Any:
        return {name: batch[name] + 1 for name in ("c0", "c1", "c2")}

    def echo(self, value: int) -> int:
        return value


class Raw:
    """Bare actors, with everything in the object store beforehand."""

    name = "raw Ray"

    def __init__(self, pool: RayResourcePool, data_parallel: int) -> None:
        actor: Any = ray.remote(Bare)
        bundles = [(place.placement_group, place.bundle_index) for place in pool.bundles()]
        places = [PlacementGroupSchedulingStrategy(group, index) for group, index in bundles]
        self.workers = [actor.options(num_cpus=0.1, scheduling_strategy=place).remote() for place in places]
        self.data_parallel, self.tensor_parallel = data_parallel, len(places) // data_parallel
        self.tiny(0)

    def batch(self, tensors: Tensors, objects: Objects) -> Any:
        return [ray.put(shard) for shard in self.shards(tensors, objects)]

    def shards(self, tensors: Tensors, objects: Objects) -> list[dict[str, Any]]:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()} | {
            name: np.array(cells, object) for name, cells in objects.items()
        }
        rows = len(next(iter(arrays.values()))) // self.data_parallel
        return [
            {name: array[at * rows : (at + 1) * rows] for name, array in arrays.items()}
            for at in range(self.data_parallel)
        ]

    def staged(self, shards: Any) -> Any:
        return shards  # they are in the store already

    def put_and_call(self, how: str, shards: list[dict[str, Any]]) -> Any:
        return self.call(how, [ray.put(shard) for shard in shards])

    def call(self, how: str, shards: Any) -> Any:
        return ray.get(
            [getattr(w, how).remote(shards[at // self.tensor_parallel]) for at, w in enumerate(self.workers)]
        )

    def chain(self, shards: Any) -> Any:
        made = [w.makes.remote(shards[at // self.tensor_parallel]) for at, w in enumerate(self.workers)]
        kept = made[:: self.tensor_parallel]
        return ray.get([w.reads.remote(kept[at // self.tensor_parallel]) for at, w in enumerate(self.workers)])

    def tiny(self, value: int) -> Any:
        return ray.get([worker.echo.remote(value) for worker in self.workers])

    def close(self) -> None:
        for worker in self.workers:
            ray.kill(worker)


def verl_side() -> Any:  # noqa: C901  # classes of another library, made when it is there
    """Return the same for verl, or the reason why there is none."""
    try:
        base = __import__("verl.single_controller.ray.base", fromlist=["base"])
        decorator = __import__("verl.single_controller.base.decorator", fromlist=["register"])
        worker = __import__("verl.single_controller.base", fromlist=["Worker"]).Worker
        container = __import__("verl.protocol", fromlist=["DataProto"]).DataProto
    except Exception as error:  # noqa: BLE001  # whatever its import raises, the comparison is left out and says so
        return f"verl could not be imported: {type(error).__name__}: {error}"
    nd = decorator.make_nd_compute_dataproto_dispatch_fn("m")

    def init(self: Any, tensor_parallel: int) -> None:
        worker.__init__(self)
        place = self.rank % tensor_parallel
        self._register_dispatch_collect_info("m", dp_rank=self.rank // tensor_parallel, is_collect=place == 0)

    def reads(self: Any, batch: Any) -> Any:  # noqa: ARG001
        touched(batch.batch)
        return batch.select(batch_keys=[])

    def writes(self: Any, batch: Any) -> Any:  # noqa: ARG001
        written(batch.batch)
        return batch.select(batch_keys=[])

    def makes(self: Any, batch: Any) -> Any:  # noqa: ARG001
        return container.from_dict({name: batch.batch[name] + 1 for name in ("c0", "c1", "c2")})

    def echo(self: Any, value: int) -> int:  # noqa: ARG001
        return value

    methods = {
        "__init__": init,
        "reads": decorator.register(dispatch_mode=nd)(reads),
        "writes": decorator.register(dispatch_mode=nd)(writes),
        "makes": decorator.register(dispatch_mode=nd, blocking=False)(makes),
        "echo": decorator.register(dispatch_mode=decorator.Dispatch.ONE_TO_ALL)(echo),
    }
    probe: Any = ray.remote(type("VerlProbe", (worker,), methods))

    class Verl:
        """verl's group, in the same bundles."""

        name = "verl"
        DataProto = container

        def __init__(self, pool: RayResourcePool, data_parallel: int) -> None:
            places = base.RayResourcePool([len(pool.bundles())], use_gpu=False, max_colocate_count=1)
            places.pgs = pool.pgs
            recipe = base.RayClassWithInitArgs(probe, len(pool.bundles()) // data_parallel)
            self.group = base.RayWorkerGroup(places, recipe, device_name="cpu")
            self.tiny(0)

        def batch(self, tensors: Tensors, objects: Objects) -> Any:
            return container.from_dict(tensors, {name: np.array(cells, object) for name, cells in objects.items()})

        def call(self, how: str, batch: Any) -> Any:
            return getattr(self.group, how)(batch)

        def chain(self, batch: Any) -> Any:
            return self.group.reads(self.group.makes(batch))

        def tiny(self, value: int) -> Any:
            return self.group.echo(value)

        def close(self) -> None:
            for one in self.group.workers:
                ray.kill(one)

    return Verl
