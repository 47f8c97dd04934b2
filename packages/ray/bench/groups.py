# ruff: noqa: D102, INP001, T201, PLC0415  a script that prints; its sides all have the same methods
"""What groups cost on one machine, beside bare Ray actors and verl 0.9.1 in the same run.

    python packages/ray/bench/groups.py [--rounds N] [--ranks 2,4,8] [--many N] [--without-verl]

Prints a table and, as its last line, one JSON object. Only ratios of one run mean much: the sides take turns and
medians are taken. All three start their ranks in the same bundles, of a pool that is placed before the clock starts;
the clock stops when every rank has answered. Ray starts no processes ahead of need here, so that no side finds more
of them than another, and bytecode is kept, as it is wherever packages are installed. verl's ranks import torch and
tensordict, as they always do; the others' do not.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import json
import logging
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.update(
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_AUTH_MODE="disabled",
    RAY_prestart_worker_first_driver="0",
    RAY_enable_worker_prestart="0",
    OMP_NUM_THREADS="1",
)
os.environ.pop("RAY_ADDRESS", None)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # ranks that compile all that they import measure the compiler
sys.path.insert(0, str(Path(__file__).parent))

import _verl
import ray
from fanfold.dispatch import Dispatch, register
from fanfold.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, attach, stop_group
from fanfold.worker import Worker
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = {
    "start / bare actors": 1.2,
    "tiny call / raw Ray": 1.1,
    "attach to 8 ranks, ms": 150.0,
    "death to error, s": 1.0,
    "many trivial ranks, s": 120.0,
}


class Bare:
    """An actor as people write it without any of these."""

    def echo(self, value: int) -> int:
        return value

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Probe(Worker):
    """The same for a group."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def echo(self, value: int) -> int:
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Raw:
    """Bare actors in the bundles of a pool, all created at once."""

    name = "raw Ray"

    def __init__(self, pool: RayResourcePool) -> None:
        actor: Any = ray.remote(Bare)
        bundles = [(place.placement_group, place.bundle_index) for place in pool.bundles()]
        places = [PlacementGroupSchedulingStrategy(group, index) for group, index in bundles]
        self.workers = [actor.options(num_cpus=0.1, scheduling_strategy=place).remote() for place in places]
        self.echo(0)

    def echo(self, value: int) -> list[int]:
        return ray.get([worker.echo.remote(value) for worker in self.workers])

    def sleep(self, seconds: float) -> None:
        ray.get([worker.sleep.remote(seconds) for worker in self.workers])

    def pid(self, rank: int) -> int:
        return int(ray.get(self.workers[rank].__ray_call__.remote(lambda _: os.getpid())))

    def close(self) -> None:
        for worker in self.workers:
            ray.kill(worker)


class Fanfold:
    """A group in the bundles of a pool."""

    name = "fanfold"

    def __init__(self, pool: RayResourcePool) -> None:
        self.group = RayWorkerGroup(pool, RayClassWithInitArgs(Probe))
        self.echo = self.group.echo
        self.sleep = self.group.sleep
        self.echo(0)

    def pid(self, rank: int) -> int:
        return self.group.placement()[rank].pid

    def close(self) -> None:
        self.group.close()


def verl_side() -> Any:
    """Return the same for verl, or the reason why there is none."""
    try:
        base = __import__("verl.single_controller.ray.base", fromlist=["base"])
        decorator = __import__("verl.single_controller.base.decorator", fromlist=["register"])
        worker = __import__("verl.single_controller.base", fromlist=["Worker"]).Worker
    except Exception as error:  # noqa: BLE001  # whatever its import raises, the comparison is left out and says so
        return f"verl {_verl.VERSION} could not be imported: {type(error).__name__}: {error}"

    def echo(self: Any, value: int) -> int:  # noqa: ARG001
        return value

    def sleep(self: Any, seconds: float) -> None:  # noqa: ARG001
        time.sleep(seconds)

    mark = decorator.register(dispatch_mode=decorator.Dispatch.ONE_TO_ALL)
    probe: Any = ray.remote(type("VerlProbe", (worker,), {"echo": mark(echo), "sleep": mark(sleep)}))

    class Verl:
        name = "verl"

        def __init__(self, pool: RayResourcePool) -> None:
            places = base.RayResourcePool([len(pool.bundles())], use_gpu=False, max_colocate_count=1)
            places.pgs = pool.pgs
            self.group = base.RayWorkerGroup(places, base.RayClassWithInitArgs(probe), device_name="cpu")
            self.echo = self.group.echo
            self.sleep = self.group.sleep
            self.echo(0)

        def pid(self, rank: int) -> int:
            return int(ray.get(self.group.workers[rank].__ray_call__.remote(lambda _: os.getpid())))

        def close(self) -> None:
            for worker in self.group.workers:
                ray.kill(worker)

    return Verl


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that an action takes, and what it gives."""
    gc.collect()
    began = time.perf_counter()
    value = action()
    return time.perf_counter() - began, value


def gone(pids: list[int]) -> None:
    """Wait until processes have ended, so that none of them takes part in what comes next."""
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)


def starts(sides: list[Any], pool: RayResourcePool, rounds: int) -> dict[str, float]:
    """Median seconds until all ranks answer, by side."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for turn in range(rounds):
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            seconds, group = timed(functools.partial(side, pool))
            times[side.name].append(seconds)
            pids = [group.pid(rank) for rank in range(len(pool.bundles()))]
            group.close()
            gone(pids)
    return {name: statistics.median(each) for name, each in times.items()}


def tiny_calls(groups: list[Any], rounds: int, calls: int = 30) -> dict[str, float]:
    """Median milliseconds of a call with a number."""
    times: dict[str, list[float]] = {group.name: [] for group in groups}
    for turn in range(rounds):
        for group in groups[turn % len(groups) :] + groups[: turn % len(groups)]:
            for _ in range(calls):
                began = time.perf_counter()
                group.echo(3)
                times[group.name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(each) for name, each in times.items()}


def deaths(sides: list[Any], pool: RayResourcePool, rounds: int) -> dict[str, float]:
    """Median seconds from a rank's end in a call to the error at the caller."""
    import threading

    times: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            group, struck = side(pool), [0.0]
            victim = group.pid(1)

            def strike(victim: int = victim, struck: list[float] = struck) -> None:
                time.sleep(0.5)
                struck[0] = time.perf_counter()
                os.kill(victim, signal.SIGKILL)

            thread = threading.Thread(target=strike)
            thread.start()
            with contextlib.suppress(ray.exceptions.RayError, RuntimeError):
                group.sleep(20.0)
            times[side.name].append(time.perf_counter() - struck[0])
            thread.join()
            group.close()
    return {name: statistics.median(each) for name, each in times.items()}


def attaching(rounds: int, ranks: int = 8) -> float:
    """Median milliseconds to attach to a detached group by its name, its first call not counted."""
    pool = RayResourcePool([ranks], cpus_per_process=0.1, detached=True)
    RayWorkerGroup(pool, RayClassWithInitArgs(Probe), name_prefix="bench", detached=True)
    times = []
    for _ in range(rounds):
        seconds, found = timed(lambda: attach("bench"))
        assert found.echo(1) == [1] * ranks
        found.close()
        times.append(1e3 * seconds)
    stop_group("bench")
    return statistics.median(times)


def many_ranks(ranks: int) -> float:
    """Seconds until that many trivial ranks have started and answered."""
    with RayResourcePool([ranks], cpus_per_process=0.01, max_colocate_count=1) as pool:
        seconds, group = timed(lambda: RayWorkerGroup(pool, RayClassWithInitArgs(Probe)))
        assert group.echo(1) == [1] * ranks
        group.close()
    return seconds


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure everything and return it."""
    sides: list[Any] = [Raw, Fanfold]
    why = "left out by --without-verl"
    if not arguments.without_verl:
        why = _verl.prepare(folder)
        importlib.invalidate_caches()
        verl = why or verl_side()
        why = verl if isinstance(verl, str) else ""
        sides += [] if why else [verl]
    found: dict[str, Any] = {"ray": ray.__version__, "python": platform.python_version(), "verl": why or _verl.VERSION}
    for ranks in arguments.ranks:
        # Two CPUs for each rank: verl asks for a whole one for its meeting point, beside the ranks of all three.
        with RayResourcePool([ranks], cpus_per_process=2, max_colocate_count=4) as pool:
            pool.get_placement_groups()
            found[f"start of {ranks} ranks, s"] = starts(sides, pool, arguments.rounds)
            groups = [side(pool) for side in sides]
            found[f"tiny call of {ranks} ranks, ms"] = tiny_calls(groups, 3 * arguments.rounds)
            for group in groups:
                group.close()
    with RayResourcePool([2], cpus_per_process=1, max_colocate_count=4) as pool:
        found["death to error, s"] = deaths([Raw, Fanfold], pool, arguments.rounds)
    found["attach to 8 ranks, ms"] = attaching(5 * arguments.rounds)
    if arguments.many:
        found[f"{arguments.many} trivial ranks, s"] = many_ranks(arguments.many)
    return found


def show(found: dict[str, Any]) -> None:
    """Print a table."""
    for name, value in found.items():
        if not isinstance(value, dict):
            print(f"{name:32} {value if isinstance(value, str) else f'{value:.2f}'}")
            continue
        ratio = value["fanfold"] / value["raw Ray"]
        sides = "  ".join(f"{side} {number:8.3f}" for side, number in value.items())
        print(f"{name:32} {sides}   fanfold/raw {ratio:.2f}")
    print("limits:", ", ".join(f"{name} {limit:g}" for name, limit in LIMITS.items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=lambda text: [int(part) for part in text.split(",")], default=[2, 4, 8])
    parser.add_argument("--many", type=int, default=64)
    parser.add_argument("--without-verl", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(os.environ.get("FANFOLD_BENCH_VERL", temporary))
        sys.path.append(str(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)]))
        ray.init(
            address="local",
            num_cpus=20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="fanfold",
        )
        found = measure(arguments, folder)
        ray.shutdown()
    show(found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
