# ruff: noqa: D102, INP001, T201  a script that prints; its sides all have the same methods
"""What it costs to move batches: fanfold, raw Ray and verl 0.9.1 take turns in one run.

    python packages/ray/bench/plane.py [--rounds N] [--ranks 2,4,8] [--tokens T] [--json FILE] [--without-verl]

Batches have B rows of T tokens, four int64 and three float32 columns and one object column: "large" B=256 (92 MB at
T=8192), "medium" B=64, T=4096 (12 MB), "small" B=16, T=1024 (0.7 MB), "many" 64 columns, B=256, T=1024 (105 MB). A
call goes to a group of tensor parallel x data parallel ranks, "reads" uses one column, "writes" writes into every
column. Raw Ray has its shards in the store before the clock starts, as dicts of numpy arrays. Medians of alternating
rounds; only ratios mean much. The numbers before the lines are those of the targets; 7 and 8 are printed by
the bench of dataproto, 9 by `groups`, 10 by those of dispatch, worker and dataproto; 6 by that of dispatch in detail.

What the sides do differently: verl sends tensors through the pickle stream, consolidates, and gives each rank a copy
that may be written; fanfold maps what is only read and copies what is written; raw Ray maps and copies nothing unless
the method does. verl's futures are fetched whole by every reader.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ.update(
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="disabled",
    RAY_prestart_worker_first_driver="0",
    RAY_enable_worker_prestart="0",
    OMP_NUM_THREADS="1",
)
os.environ.pop("RAY_ADDRESS", None)
sys.path.insert(0, str(Path(__file__).parent))

import _plane_sides as plane_sides
import _verl
import numpy as np
import ray
import torch
from fanfold.dataproto import DataProto
from fanfold.dispatch import plan_call, spec_of
from fanfold.dispatch.mesh import Mesh
from fanfold.ray import RayResourcePool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Times = dict[str, list[float]]
Limits = dict[str, dict[str, tuple[str, float]]]

BIG_CALLS: Limits = {
    "reads": {"raw Ray": ("most", 1.5), "verl": ("least", 10.0)},
    "writes": {"raw Ray": ("most", 1.5), "verl": ("least", 4.0)},
}
NO_TARGET: Limits = {"reads": {}, "writes": {}}
SMALL_CALLS: Limits = {how: {"verl": ("least", 2.0)} for how in ("reads", "writes")}


_SHORT = 0.03  # seconds
_MORE_OFTEN = 20


def _seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    value = action()
    ended = time.perf_counter()
    del value  # letting go of what came is not part of it
    return ended - began


class Figure(NamedTuple):
    """One line: a ratio of medians and what it is to be."""

    name: str
    ratio: float
    milliseconds: dict[str, float]
    target: str
    met: bool | None


class Bench:
    """Takes turns and keeps figures."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.figures = rounds, list[Figure]()

    def medians(self, sides: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        """Median milliseconds by side; each side goes first in turn, and twice before the clock starts.

        What takes less than a time slice of a busy machine is measured more often, or the machine is what is measured.
        """
        times: Times = {name: [] for name in sides}
        often = {name: _MORE_OFTEN if _seconds(action) < _SHORT else 1 for name, action in [*sides.items()] * 2}
        names = list(sides)
        gc.collect()
        gc.freeze()  # what is there is there to stay; looking through it each time would take longer than the calls
        for turn in range(self.rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                gc.collect()
                times[name] += [1e3 * _seconds(sides[name]) for _ in range(often[name])]
        gc.unfreeze()
        return {name: statistics.median(each) for name, each in times.items()}

    def compare(
        self, name: str, sides: Mapping[str, Callable[[], Any]], over: str, limits: dict[str, tuple[str, float]]
    ) -> None:
        """Measure sides and say how fanfold stands to others: `limits` is by other side ("most" or "least", ratio)."""
        found = self.medians(sides)
        for other in [over, *(side for side in sides if side not in ("fanfold", over))]:
            kind, limit = limits.get(other, ("", 0.0))
            ratio = found["fanfold"] / found[other]
            target = {"most": f"at most {limit:g}x", "least": f"at least {limit:g}x faster", "": ""}[kind]
            met = {"most": ratio <= limit, "least": limit * ratio <= 1, "": None}[kind]
            self.note(Figure(f"{name}: fanfold / {other}", ratio, found, target, met))

    def note(self, figure: Figure) -> None:
        """Keep a figure and print it."""
        self.figures.append(figure)
        mark = {True: "met", False: "NOT MET", None: ""}[figure.met]
        told = "  ".join(f"{side} {value:.2f} ms" for side, value in figure.milliseconds.items())
        print(f"{figure.name:58} {figure.ratio:9.3f}  {figure.target:22} {mark:8} {told}", flush=True)


def batch(rows: int, tokens: int, columns: int = 7) -> tuple[dict[str, torch.Tensor], dict[str, list[str]]]:
    """Make the columns of a batch: four of seven int64, the others float32, and one of objects."""
    tensors = {
        f"c{at}": torch.randint(0, 100, (rows, tokens)) if at % 7 < 4 else torch.rand(rows, tokens)  # noqa: PLR2004
        for at in range(columns)
    }
    return tensors, {"uid": [f"row {row}" for row in range(rows)]}


def puts_and_gets(bench: Bench, verl: Any, rows: int, tokens: int) -> None:
    """Figures 1 and 2."""
    tensors, objects = batch(rows, tokens)
    mine = DataProto.from_dict(tensors, objects)
    bare = {name: tensor.numpy() for name, tensor in tensors.items()}
    theirs = (
        None
        if verl is None
        else verl.DataProto.from_dict(tensors, {k: np.array(v, object) for k, v in objects.items()})
    )
    values = {"fanfold": mine, "bare numpy": bare} | ({} if theirs is None else {"verl": theirs})
    size = f"{mine.nbytes / 1e6:.3g} MB"
    puts = {name: functools.partial(ray.put, value) for name, value in values.items()}
    bench.compare(f"1 put {size}", puts, "bare numpy", {"bare numpy": ("most", 1.3), "verl": ("least", 7.0)})
    references = {name: ray.put(value) for name, value in values.items()}
    gets = {name: functools.partial(ray.get, reference) for name, reference in references.items()}
    bench.compare(f"2 get {size}", gets, "bare numpy", {"bare numpy": ("most", 2.0)})
    small = ray.put(DataProto.from_dict(*batch(rows, max(1, tokens // 64))))
    sizes = {"fanfold": gets["fanfold"], "64 times smaller": functools.partial(ray.get, small)}
    bench.compare(f"2 get {size}, by size", sizes, "64 times smaller", {"64 times smaller": ("most", 1.5)})


def calls(bench: Bench, sides: list[Any], label: str, shape: tuple[int, int, int], limits: Limits) -> None:
    """Figures 3 and 5: one call on data that the driver holds."""
    tensors, objects = batch(*shape)
    for how in ("reads", "writes"):
        actions = {side.name: functools.partial(side.call, how, side.batch(tensors, objects)) for side in sides}
        bench.compare(f"{label}, {how}", actions, "raw Ray", limits[how])


def ways(bench: Bench, fanfold: Any, raw: Any, label: str, shape: tuple[int, int, int]) -> None:
    """Measure what is gained by saying which column is read, and by storing the batch once; there is no target."""
    tensors, objects = batch(*shape)
    given = fanfold.batch(tensors, objects)
    actions = {
        "fanfold": functools.partial(fanfold.call, "reads", given),
        "with reads=": functools.partial(fanfold.call, "reads_one", given),
        "staged": functools.partial(fanfold.call, "reads_one", fanfold.staged(given)),
        raw.name: functools.partial(raw.call, "reads", raw.batch(tensors, objects)),
        "raw Ray, put too": functools.partial(raw.put_and_call, "reads", raw.shards(tensors, objects)),
    }
    bench.compare(f"3 ways to call, {label}, reads", actions, raw.name, {})
    fanfold.call("reads", given)
    told = fanfold.group.last_call
    milliseconds = {phase: 1e3 * seconds for phase, seconds in told.seconds.items()}
    share = told.seconds["put"] / sum(told.seconds.values())
    bench.note(Figure(f"3 of one call, {label}, reads: the put's share", share, milliseconds, "", None))


def chains(bench: Bench, sides: list[Any], label: str, shape: tuple[int, int, int]) -> None:
    """Figure 4: what one call made goes through another."""
    tensors, objects = batch(*shape)
    given = {side.name: side.batch(tensors, objects) for side in sides}
    actions = {side.name: functools.partial(side.chain, given[side.name]) for side in sides}
    bench.compare(f"4 chain of two from the driver, {label}", actions, "raw Ray", {})
    stored = {side.name: side.staged(given[side.name]) for side in sides if hasattr(side, "staged")}
    actions = {side.name: functools.partial(side.chain, stored[side.name]) for side in sides if side.name in stored}
    bench.compare(f"4 chain of two, {label}", actions, "raw Ray", {"raw Ray": ("most", 1.3)})


def tiny(bench: Bench, sides: list[Any], label: str) -> None:
    """The second half of figure 5."""
    most = Bench(bench.rounds * 10)
    actions = {side.name: functools.partial(side.tiny, 3) for side in sides}
    most.compare(f"5 tiny call, {label}", actions, "raw Ray", {"raw Ray": ("most", 1.1)})
    bench.figures += most.figures


class Table(NamedTuple):
    """A group of many ranks as planning sees it."""

    world_size: int

    def mesh(self, name: str) -> Mesh:
        ranks = range(self.world_size)
        return Mesh.from_dp_ranks(name, [rank // 8 for rank in ranks], [rank % 8 == 0 for rank in ranks])


def plans(bench: Bench) -> None:
    """Figure 6."""

    def method(self: Any, batch: Any) -> None: ...

    spec = spec_of(plane_sides.Reads.reads)
    assert spec is not None

    def planned(ranks: int, columns: int) -> Callable[[], Any]:
        made = DataProto.from_dict(batch(ranks, 4, columns)[0])
        return lambda: plan_call(spec, method, Table(ranks), (made,), {}).pieces()

    found = bench.medians(
        {"7 fields": planned(1024, 7), "256 fields": planned(1024, 256), "512 ranks": planned(512, 7)}
    )
    milliseconds = found["7 fields"]
    bench.note(Figure("6 plan of 1024 ranks, ms", milliseconds, found, "at most 5 ms", milliseconds <= 5))  # noqa: PLR2004
    ratio = found["256 fields"] / milliseconds
    bench.note(Figure("6 plan: 256 fields / 7 fields", ratio, found, "at most 1.2x", ratio <= 1.2))  # noqa: PLR2004
    ratio = milliseconds / found["512 ranks"]
    bench.note(Figure("6 plan: 1024 ranks / 512 ranks", ratio, found, "at most 2.5x", ratio <= 2.5))  # noqa: PLR2004


def memory(bench: Bench, side: Any, passes: int, shape: tuple[int, int, int]) -> None:
    """Figure 11: the driver's resident memory while batches go by that it only passes on."""
    tensors, objects = batch(*shape)
    given = side.batch({name: tensor[:, :1].contiguous() for name, tensor in tensors.items()}, objects)
    side.pass_on(given, shape[1])
    before = plane_sides.resident()
    most = max(side.pass_on(given, shape[1]) or plane_sides.resident() for _ in range(passes))
    grown = most - before
    name = f"11 driver grows by, {passes} x {megabytes(shape):.0f} MB passing, MB"
    bench.note(Figure(name, grown, {}, "at most 20 MB", grown <= 20))  # noqa: PLR2004
    grown, own = side.grown(given, shape[1])
    bench.note(Figure("11 a rank grows by / its own rows", grown / own, {}, "at most 1.2x", grown <= 1.2 * own))


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[Bench, str]:
    """Measure everything; says too why verl is left out, if it is."""
    bench, why, verl = Bench(arguments.rounds), "left out by --without-verl", None
    if not arguments.without_verl:
        why = _verl.prepare(folder)
        importlib.invalidate_caches()
        if not why:
            verl = plane_sides.verl_side()
            why = verl if isinstance(verl, str) else ""
            verl = None if why else verl
    large, small = (256, arguments.tokens, 7), (16, min(1024, arguments.tokens), 7)
    plans(bench)
    for rows, tokens, _ in (large, small):
        puts_and_gets(bench, verl, rows, tokens)
    last = arguments.ranks[-1]
    layouts = [(ranks, min(2, ranks)) for ranks in arguments.ranks] + [(last, last)] * (last > 2)  # noqa: PLR2004
    for ranks, data_parallel in layouts:
        layout = f"{ranks} ranks (TP {ranks // data_parallel} x DP {data_parallel})"
        with RayResourcePool([ranks], cpus_per_process=2, max_colocate_count=8) as pool:
            pool.get_placement_groups()
            sides = [side(pool, data_parallel) for side in (plane_sides.Raw, plane_sides.Fanfold, verl) if side]
            calls(bench, sides, f"3 call {megabytes(large):.0f} MB, {layout}", large, BIG_CALLS)
            calls(bench, sides, f"5 call {megabytes(small):.1f} MB, {layout}", small, SMALL_CALLS)
            chains(bench, sides, layout, large)
            tiny(bench, sides, layout)
            if (ranks, data_parallel) == (last, min(2, last)):
                more(bench, sides, layout, arguments.tokens)
            for side in sides:
                side.close()
    return bench, why


def megabytes(shape: tuple[int, int, int]) -> float:
    """Return the size of the tensors of a batch."""
    return sum(tensor.nbytes for tensor in batch(*shape)[0].values()) / 1e6


def more(bench: Bench, sides: list[Any], layout: str, tokens: int) -> None:
    """Measure what is measured for one layout only: other shapes, other ways to call, memory."""
    medium, many = (64, tokens // 2, 7), (256, tokens // 8, 64)
    calls(bench, sides, f"3 call {megabytes(medium):.0f} MB, {layout}", medium, NO_TARGET)
    calls(bench, sides, f"3 call {megabytes(many):.0f} MB in 64 columns, {layout}", many, NO_TARGET)
    ways(bench, sides[1], sides[0], layout, (256, tokens, 7))
    memory(bench, sides[1], 10, (256, tokens, 7))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=lambda text: [int(part) for part in text.split(",")], default=[2, 4, 8])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--without-verl", action="store_true")
    arguments, began = parser.parse_args(), time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("FANFOLD_BENCH_VERL", temporary))
        sys.path.append(str(folder))
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH"), str(folder)]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        ray.init(
            address="local",
            num_cpus=20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="fanfold",
            object_store_memory=4 << 30,
        )
        ray.put(0)  # Ray looks for other packages at its first put, and is not to meet what stands in for them below
        logging.getLogger("fanfold.ray").setLevel(logging.ERROR)  # it is right: the same batch is sent again and again
        bench, why = measure(arguments, folder)
        ray.shutdown()
    facts = {
        "ray": ray.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "rounds": arguments.rounds,
        "seconds": round(time.perf_counter() - began),
        "nemo-rl": "left out: what the package registry has under this name is empty",
    }
    found = {**facts, "verl": why or _verl.VERSION, "figures": [figure._asdict() for figure in bench.figures]}
    print(f"verl: {found['verl']}; NeMo-RL: {facts['nemo-rl']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
