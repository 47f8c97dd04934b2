# ruff: noqa: INP001, T201  a script that prints
"""What a `train_model` call through Ray costs over the same step in the worker, beside a raw Ray call that does it too.

    python packages/megatron/bench/call_overhead.py [--rounds N]

The batch has the shape of the llama-1b preset's: 16 x 1024. The model is as small as can be, so that what lies around
the step shows. The raw call finds its data in the object store; the group is given its data once by the driver, which
has to put it there, and once as the promise of an earlier call, whose ranks have it. Each side's overhead is the wall
time of the call less the time inside the method, in the same call; the sides take turns; medians. Prints a table and,
as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from functools import partial
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")

import ray  # it reads the environment
import torch
from fanfold.dataproto import DataProto, position_ids_from_mask
from fanfold.dispatch import make_nd_compute_dataproto_dispatch_fn, register
from fanfold.megatron import MegatronTrainer, ModelConfig
from fanfold.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

MODEL = ModelConfig(hidden_size=16, ffn_hidden_size=16, num_layers=1, num_attention_heads=2)
LIMIT = 1.5
NAMES = {
    "driver": "a call of a worker group, data from the driver",
    "promise": "a call of a worker group, data that an earlier call has made",
    "raw": "a raw Ray call, its data in the object store",
}


class Timed(MegatronTrainer):
    """A trainer that says how long its step took."""

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"))
    def timed_step(self, batch: DataProto) -> DataProto:
        """Train, and put the seconds into the metrics."""
        start = time.perf_counter()
        result = self.train_model(batch)
        result.meta_info["metrics"]["seconds"] = time.perf_counter() - start
        return result

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="train"))
    def rows_of_an_earlier_call(self, batch: DataProto) -> DataProto:
        """Return rows as a rollout would."""
        return batch.select(deepcopy=True)


@ray.remote
class Raw:
    """An actor that does the same steps with what Ray hands it."""

    def __init__(self) -> None:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # one rank meets nobody there
        self.trainer = MegatronTrainer(model=MODEL, device="cpu")
        self.trainer.init_model()

    def step(self, columns: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """Train; the columns are numpy arrays from the object store."""
        start = time.perf_counter()
        batch = DataProto.from_dict(tensors={name: torch.from_numpy(column.copy()) for name, column in columns.items()})
        result = self.trainer.train_model(batch)
        assert result.batch is not None
        losses = {str(name): column.numpy() for name, column in result.batch.items()}
        return {"metrics": result.meta_info["metrics"], **losses}, time.perf_counter() - start


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    # A cluster of its own, also where this machine has one already.
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    batch = rows()
    group: Any = RayWorkerGroup(
        RayResourcePool(process_on_nodes=[1], use_gpu=False), RayClassWithInitArgs(Timed, model=MODEL, device="cpu")
    )
    group.init_model()
    raw = Raw.remote()  # type: ignore[attr-defined]  # ray's decorator adds it
    assert batch.batch is not None
    placed = ray.put({str(name): column.numpy() for name, column in batch.batch.items()})
    sides: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(rounds + 3):
        promised = group.rows_of_an_earlier_call.options(blocking=False)(batch)
        time.sleep(0.05)  # until it is there
        sides["driver"].append(overhead(lambda: seconds_inside(group.timed_step(batch))))
        sides["promise"].append(overhead(partial(lambda given: seconds_inside(group.timed_step(given)), promised)))
        sides["raw"].append(overhead(lambda: ray.get(raw.step.remote(placed))[1]))
    show({name: 1000 * statistics.median(seconds[3:]) for name, seconds in sides.items()})
    group.close()
    ray.shutdown()


def seconds_inside(result: DataProto) -> float:
    """Read how long the step itself took."""
    return float(result.meta_info["metrics"]["seconds"][0])


def overhead(call: Any) -> float:
    """Return the seconds of a call less those it says were spent inside."""
    start = time.perf_counter()
    inside = float(call())
    return time.perf_counter() - start - inside


def show(middle: dict[str, float]) -> None:
    """Print the table and the JSON line."""
    for name, text in NAMES.items():
        print(f"{text:>65} {middle[name]:8.2f} ms over its step, {middle[name] / middle['raw']:5.2f} of the raw call's")
    print(f"{'the limit, data in place':>65} {LIMIT:>34.2f}")
    print(json.dumps({name: round(value, 3) for name, value in middle.items()}))


def rows() -> DataProto:
    """Return 16 rows of 1024 random tokens."""
    mask = torch.ones(16, 1024, dtype=torch.int64)
    columns = {"input_ids": torch.randint(256, (16, 1024)), "attention_mask": mask}
    return DataProto.from_dict(tensors={**columns, "position_ids": position_ids_from_mask(mask)})


if __name__ == "__main__":
    main()
