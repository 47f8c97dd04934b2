"""Make a group of detached Megatron trainers on a running cluster, print their names, and exit: the workers stay."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from typing import Any

import ray
from fanfold.dispatch import Dispatch, FanfoldError, register
from fanfold.megatron import (
    LayoutError,
    MegatronTrainer,
    ModelConfigError,
    OptimizerConfig,
    ParallelConfig,
    model_config,
)
from fanfold.ray import NameTakenError, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, connect, stop_group
from options import interrupt_on_termination, parse, report


class Trainer(MegatronTrainer):
    """What runs on each rank: a Megatron trainer that can also say where and on what it runs."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def describe(self) -> dict[str, Any]:
        """Return this rank's layout and device, and the process that created it."""
        return {
            "layout": str(self.parallel),
            "device": self.device.describe(),
            "server": (os.environ["SERVER_HOST"], int(os.environ["SERVER_PID"])),
        }


def main() -> int:
    """Run the command line."""
    chosen = parse()
    action = stop if chosen.stop else serve
    return report(lambda: action(chosen), debug=chosen.debug, expected=(FanfoldError,))


def serve(chosen: argparse.Namespace) -> None:
    """Start the workers, let them build the model, and let go of them."""
    layout = checked_layout(chosen)
    connect(chosen.address, chosen.namespace)
    interrupt_on_termination()
    if chosen.replace:
        stop_group(chosen.name)
    pool = RayResourcePool(
        process_on_nodes=[layout.world_size],
        use_gpu={"auto": None, "cpu": False, "cuda": True}[chosen.device],
        cpus_per_process=chosen.cpus_per_process or affordable_cpus(layout.world_size),
        detached=True,
    )
    try:
        group: RayWorkerGroup[Trainer] = RayWorkerGroup(
            pool,
            recipe(chosen, layout),
            name_prefix=chosen.name,
            detached=True,
            worker_env={"SERVER_PID": str(os.getpid()), "SERVER_HOST": platform.node()},
        )
    except NameTakenError as error:
        raise NameTakenError(f"{error}. Here: `server.py --replace` ends it and goes on") from error
    try:
        group.init_model()
    except BaseException:
        group.stop()  # workers without a model would hold their places, and their name
        raise
    print("\n".join(group.worker_names))


def stop(chosen: argparse.Namespace) -> None:
    """End the group of that name; a group that is gone already is fine."""
    connect(chosen.address, chosen.namespace)
    interrupt_on_termination()
    stop_group(chosen.name)


def checked_layout(chosen: argparse.Namespace) -> ParallelConfig:
    """Return the layout, or end the process with status 2 where the model cannot be divided so."""
    try:
        layout = ParallelConfig(tensor=chosen.tp, pipeline=chosen.pp, data=chosen.dp)
        model_config(chosen.preset).check_layout(layout)
    except (LayoutError, ModelConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    return layout


def recipe(chosen: argparse.Namespace, layout: ParallelConfig) -> RayClassWithInitArgs:
    """Say what each rank builds."""
    return RayClassWithInitArgs(
        Trainer,
        model=chosen.preset,
        parallel=layout,
        optimizer=OptimizerConfig(learning_rate=chosen.learning_rate),
        device=chosen.device,
        seed=chosen.seed,
    )


def affordable_cpus(ranks: int) -> float:
    """Return one CPU a rank, or an equal share where the cluster has fewer CPUs than ranks."""
    return min(1.0, int(100 * ray.cluster_resources().get("CPU", 1.0) / ranks) / 100)


if __name__ == "__main__":
    sys.exit(main())
