# ruff: noqa: INP001, T201, S603  a script that prints and starts interpreters
"""What importing, calling and starting cost on one machine, each beside the bare thing in the same run.

    python packages/worker/bench/local_backends.py [--rounds N] [--megabytes N]

Prints a table and, as its last line, one JSON object. The sides take turns. What happens in this process alone, and
imports (with bytecode written before), is CPU time, the least of all rounds: what others do on the machine only adds to
it. What involves other processes is wall time, the median; there only ratios of one run mean much.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from fanfold.worker import WorkerGroup
from fanfold.worker.border import across
from fanfold.worker.testing import Probe

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = {"import, ms": 60.0, "inline call of 8 ranks, us a rank": 30.0}


def taking_turns(
    rounds: int,
    sides: dict[str, Callable[[], Any]],
    clock: Callable[[], float] = time.perf_counter,
    choose: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """Time the sides in turn and return each one's median, or what else `choose` takes, in seconds."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, action in sides.items():
            start = clock()
            action()
            times[name].append(clock() - start)
    return {name: choose(each) for name, each in times.items()}


def import_cost(rounds: int) -> dict[str, float]:
    """Milliseconds of CPU above a bare interpreter."""
    modules = ("fanfold.dispatch", "fanfold.worker")
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        code = {
            "bare": "pass",
            "fanfold.dispatch": "import fanfold.dispatch",
            "fanfold.worker": "import fanfold.worker",
        }
        for program in code.values():
            subprocess.run([sys.executable, "-c", program], check=True, env=environment)
        times: dict[str, list[float]] = {name: [] for name in code}
        for _ in range(rounds):
            for name, program in code.items():
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run([sys.executable, "-c", program], check=True, env=environment)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                times[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    least = {name: min(each) for name, each in times.items()}
    return {name: 1e3 * (least[name] - least["bare"]) for name in modules}


def inline_calls(rounds: int, calls: int = 25) -> dict[int, float]:
    """Microseconds a rank of a ONE_TO_ALL call with a number, above calling the method itself; by group size."""
    costs = {}
    for ranks in (1, 8, 64):
        with WorkerGroup([ranks], Probe) as group:
            workers = [member.door.worker for member in group._members]  # noqa: SLF001  # what a plain loop would call

            def plainly(workers: list[Any] = workers) -> None:
                for _ in range(calls):
                    for worker in workers:
                        worker.echo(3)

            def by_group(group: WorkerGroup[Any] = group) -> None:
                for _ in range(calls):
                    group.echo(3)

            sides: dict[str, Callable[[], Any]] = {"plain": plainly, "group": by_group}
            times = taking_turns(10 * rounds, sides, time.process_time, min)
        costs[ranks] = 1e6 * (times["group"] - times["plain"]) / calls / ranks
    return costs


def border(rounds: int, megabytes: int) -> dict[str, float]:
    """Seconds to carry an array over the inline border, and to copy it."""
    array = np.ones(megabytes << 17)
    return taking_turns(
        rounds, {"across": lambda: across(array, "an array"), "copy": array.copy}, time.process_time, min
    )


def _answer(connection: Any) -> None:
    while (value := connection.recv()) is not None:
        connection.send(float(value[0]) if isinstance(value, np.ndarray) else value)


def processes(rounds: int, megabytes: int, ranks: int = 4) -> dict[str, float]:
    """Seconds for a tiny call and for an array sent to all ranks, with pipes of multiprocessing beside it."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(ranks)]
    bare = [context.Process(target=_answer, args=(there,), daemon=True) for _, there in pipes]
    for process in bare:
        process.start()
    array = np.ones(megabytes << 17)

    def by_pipes(value: Any) -> None:
        for here, _ in pipes:
            here.send(value)
        for here, _ in pipes:
            here.recv()

    with WorkerGroup([ranks], Probe, backend="processes") as group:
        sides: dict[str, Callable[[], Any]] = {
            "tiny call": lambda: group.echo(3),
            "tiny by pipes": lambda: by_pipes(3),
            "array call": lambda: group.execute(_first, array),
            "array by pipes": lambda: by_pipes(array),
        }
        for action in sides.values():
            action()
        times = taking_turns(rounds, sides)
    for here, _ in pipes:
        here.send(None)
    for process in bare:
        process.join()
    return times


def _first(worker: Any, array: Any) -> float:  # noqa: ARG001  # a function of the worker
    return float(array[0])


def start(rounds: int, ranks: int = 4) -> dict[str, float]:
    """Seconds until a group of processes is there, with bare interpreters that import as much beside it."""
    program = "import fanfold.worker.rank_process, fanfold.worker.testing"

    def interpreters() -> None:
        started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(ranks)]
        for process in started:
            process.wait()

    def group() -> None:
        WorkerGroup([ranks], Probe, backend="processes").close()

    return taking_turns(rounds, {"group": group, "bare": interpreters})


def main() -> int:
    """Measure and print; the exit status says whether the limits hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=64)
    chosen = parser.parse_args()
    rounds, megabytes = chosen.rounds, chosen.megabytes
    imports, inline = import_cost(rounds), inline_calls(rounds)
    copied, sent, started = border(rounds, megabytes), processes(rounds, megabytes), start(max(3, rounds // 3))
    figures = {
        "import, ms": imports["fanfold.worker"],
        "import of fanfold.dispatch in it, ms": imports["fanfold.dispatch"],
        **{f"inline call of {ranks} ranks, us a rank": cost for ranks, cost in inline.items()},
        f"inline border, {megabytes} MB: times a copy": copied["across"] / copied["copy"],
        "tiny call of 4 processes, ms": 1e3 * sent["tiny call"],
        "tiny call of 4 processes: times bare pipes": sent["tiny call"] / sent["tiny by pipes"],
        f"{megabytes} MB to 4 processes, ms": 1e3 * sent["array call"],
        f"{megabytes} MB to 4 processes: times bare pipes": sent["array call"] / sent["array by pipes"],
        "start of 4 processes, s": started["group"],
        "start of 4 processes: times bare interpreters": started["group"] / started["bare"],
    }
    for name, value in figures.items():
        limit = f"  (limit {LIMITS[name]:g})" if name in LIMITS else ""
        print(f"{name:<52} {value:>9.3f}{limit}")
    broken = [name for name, limit in LIMITS.items() if figures[name] > limit]
    print(json.dumps({"figures": figures, "limits": LIMITS, "broken": broken}))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
