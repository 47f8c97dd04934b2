# ruff: noqa: INP001, T201, S603  a script that prints and starts interpreters
"""What starting two ranks costs beside importing Megatron-Core, and what a worker holds beside plain Megatron-Core.

    python packages/megatron/bench/startup_and_memory.py [--rounds N]

Prints a table and, as its last line, one JSON object. The sides take turns; wall times, the median: on a machine that
does other things too, only ratios of one run mean much.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fanfold.dataproto import DataProto
from fanfold.dispatch import Dispatch, register
from fanfold.megatron import MegatronTrainer, ModelConfig, ParallelConfig
from fanfold.worker import ClassWithInitArgs, WorkerGroup

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {"hidden": 512, "ffn": 1408, "layers": 4, "heads": 8}
SHAPE = {"rows": 4, "tokens": 128}
LIMITS = {"start of 2 ranks, of 2 imports": 1.3, "peak memory of a worker, of plain Megatron-Core's": 1.1}


class Measured(MegatronTrainer):
    """A trainer that says its process's peak memory."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def peak(self) -> float:
        """Return MiB."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    sides: dict[str, Callable[[], float]] = {
        "import": import_in_two,
        "start": start_of_two,
        "plain": plain_peak,
        "worker": worker_peak,
    }
    seen: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            seen[name].append(measure())
    middle = {name: statistics.median(values) for name, values in seen.items()}
    show(middle)


def show(middle: dict[str, float]) -> None:
    """Print the table and the JSON line."""
    ratios = dict(zip(LIMITS, (middle["start"] / middle["import"], middle["worker"] / middle["plain"]), strict=True))
    print(f"{'import of megatron.core in 2 processes':>55} {middle['import']:8.2f} s")
    print(f"{'start of 2 ranks and init_model':>55} {middle['start']:8.2f} s")
    print(f"{'peak memory of plain Megatron-Core':>55} {middle['plain']:8.0f} MiB")
    print(f"{'peak memory of a worker, 1 rank':>55} {middle['worker']:8.0f} MiB")
    for name, ratio in ratios.items():
        print(f"{name:>55} {ratio:8.2f} (at most {LIMITS[name]})")
    print(json.dumps({name: round(value, 3) for name, value in (middle | ratios).items()}))


def import_in_two() -> float:
    """Import what a rank imports of Megatron-Core, in two processes at once; seconds."""
    code = "import warnings; warnings.simplefilter('ignore'); import megatron.core, megatron.core.models.gpt"
    start = time.perf_counter()
    both = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) for _ in range(2)]
    for one in both:
        if one.wait():
            raise RuntimeError("megatron.core could not be imported")
    return time.perf_counter() - start


def start_of_two() -> float:
    """Start two tensor-parallel ranks in processes and let them make the tiny model; seconds."""
    recipe = ClassWithInitArgs(Measured, parallel=ParallelConfig(tensor=2), device="cpu")
    start = time.perf_counter()
    started: Any = WorkerGroup([2], recipe, backend="processes")
    with started as group:
        group.init_model()
        return time.perf_counter() - start


def plain_peak() -> float:
    """Train without fanfold; MiB."""
    options = [f"--{name}={value}" for name, value in (SIZES | SHAPE).items()]
    command = [sys.executable, str(Path(__file__).with_name("_plain.py")), *options]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def worker_peak() -> float:
    """Train the same sizes through a worker group with a process for its rank; MiB."""
    model = ModelConfig(
        hidden_size=SIZES["hidden"],
        ffn_hidden_size=SIZES["ffn"],
        num_layers=SIZES["layers"],
        num_attention_heads=SIZES["heads"],
    )
    ids = torch.randint(256, (SHAPE["rows"], SHAPE["tokens"]))
    batch = DataProto.from_dict(tensors={"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    started: Any = WorkerGroup([1], ClassWithInitArgs(Measured, model=model, device="cpu"), backend="processes")
    with started as group:
        group.init_model()
        for _ in range(3):
            group.train_model(batch)
        return float(group.peak()[0])


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
