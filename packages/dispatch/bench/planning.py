# ruff: noqa: ARG002, INP001, T201  a script that prints; its methods are not run
"""What planning, binding and importing cost, with verl 0.9.1's own dispatch of the same call beside it.

    python packages/dispatch/bench/planning.py [--without-verl] [--rounds N]

Prints a table and, as its last line, one JSON object. Only ratios of one run mean anything: the sides take turns,
medians are taken, and times are of this process's CPU. verl cuts the batch while it plans; fanfold cuts later, once for
each distinct piece, so there is also "plan and cut", of a TensorDict as in verl's batch. verl's wheel is fetched from
the package index into a temporary folder, where its modules are read one by one; its package __init__ files, which
start everything, are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fanfold.dispatch import (
    Dispatch,
    Mesh,
    make_nd_compute_dataproto_dispatch_fn,
    plan_call,
    register,
    spec_of,
    specs_of,
)
from fanfold.dispatch.annotations import marks_of
from fanfold.dispatch.signature import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VERL = "verl==0.9.1"
LIMITS = {"import, ms": 45, "plan 1024 ranks x 256 columns, ms": 5, "bind 100 methods, ms": 5}


class Columns:
    """A batch that only counts: cutting it makes a new one of the same columns."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = dict.fromkeys(map(str, range(columns)), rows)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, key: slice) -> Columns:
        return Columns(len(range(*key.indices(self.rows))), len(self.columns))

    def chunk(self, chunks: int) -> list[Columns]:
        """Equal parts."""
        return [self[: self.rows // chunks]] * chunks

    @staticmethod
    def concat(parts: Sequence[Columns]) -> Columns:
        """All rows."""
        return Columns(sum(map(len, parts)), len(parts[0].columns))


class Trainer:
    """The method that is called."""

    @register(make_nd_compute_dataproto_dispatch_fn("train"))
    def train(self, batch: Columns, lr: float = 0.1) -> Columns:
        """Along a mesh."""
        return batch

    @register(Dispatch.DP_COMPUTE_PROTO)
    def every(self, batch: Columns, lr: float = 0.1) -> Columns:
        """Over all ranks."""
        return batch


class Group:
    """A group to plan for."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._mesh = Mesh.from_sizes("train", {"tp": min(8, world_size), "dp": max(1, world_size // 8)})

    def mesh(self, name: str) -> Mesh:
        """The only mesh."""
        assert name == self._mesh.name
        return self._mesh


def planning(method: Callable[..., Any], ranks: int, columns: int) -> Callable[[], object]:
    """Plan a call whole: what each rank gets, what is to be placed, what is collected."""
    group, batch, spec = Group(ranks), Columns(4 * ranks, columns), spec_of(method)
    assert spec is not None

    def once() -> object:
        plan = plan_call(spec, method, group, (batch,), {"lr": 0.5}, owner="Trainer")
        return [plan.call_for(rank) for rank in plan.ranks], plan.pieces(), plan.collected

    return once


def binding(count: int) -> Callable[[], object]:
    """Look at a class as a group does when it binds methods: marks, signatures, marks on parameters."""
    source = "\n".join(
        f"    @register()\n    def m{n}(self, batch: int, lr: float = 0.1) -> int: ..." for n in range(count)
    )

    def once() -> object:
        return [parameters_of(getattr(cls, name)) for name in specs_of(cls)]

    names: dict[str, Any] = {"register": register, "__name__": __name__}
    exec(f"class Many:\n{source}", names)  # noqa: S102  a class with that many methods
    cls = names["Many"]

    def fresh() -> object:
        parameters_of.cache_clear()
        marks_of.cache_clear()
        return once()

    return fresh


def importing() -> float:
    """CPU seconds that importing the package adds to a bare interpreter; the least of several."""
    sources = Path(importlib.import_module("fanfold.dispatch").__file__ or "").parents[2]

    def least(code: str) -> float:
        program = f"import sys; sys.path.insert(0, {str(sources)!r}); {code}; import os; print(sum(os.times()[:2]))"
        command = [sys.executable, "-I", "-S", "-c", program]
        return min(float(subprocess.check_output(command)) for _ in range(9))  # noqa: S603  this interpreter

    return least("import fanfold.dispatch") - least("pass")


def verl_dispatch(folder: Path, ranks: int, columns: int) -> Callable[[], object]:
    """What verl itself does to dispatch of a batch over all ranks."""
    decorator, protocol = load_verl(folder)
    torch = importlib.import_module("torch")
    tensors = {f"column{n}": torch.zeros(4 * ranks, 1) for n in range(columns)}
    batch = protocol.DataProto.from_dict(tensors=tensors)
    worker_group = importlib.import_module("verl.single_controller.base.worker_group").WorkerGroup
    group = worker_group.__new__(worker_group)
    group._workers = list(range(ranks))  # noqa: SLF001  its world size is the number of its workers

    def once() -> object:
        return decorator.dispatch_dp_compute_data_proto(group, batch)

    once()
    return once


def planning_and_cutting(ranks: int, columns: int) -> Callable[[], object]:
    """Plan the call that verl's side makes, and cut every piece."""
    torch, tensordict = importlib.import_module("torch"), importlib.import_module("tensordict")
    tensors = {f"column{n}": torch.zeros(4 * ranks, 1) for n in range(columns)}
    batch = tensordict.TensorDict(tensors, batch_size=[4 * ranks])
    spec, group = spec_of(Trainer.every), Group(ranks)
    assert spec is not None

    def once() -> object:
        plan = plan_call(spec, Trainer.every, group, (batch,), {}, owner="Trainer")
        return {piece: plan.value(piece) for piece in plan.pieces()}

    return once


def load_verl(folder: Path) -> tuple[Any, Any]:
    """Import two modules of verl's wheel without its packages' __init__ files and what those start."""
    if "verl" not in sys.modules:
        pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["python3", "-m", "pip"]
        subprocess.run([*pip, "download", "-q", "--no-deps", "-d", folder, VERL], check=True, capture_output=True)  # noqa: S603
        (wheel,) = folder.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(folder)  # a wheel of the package index
        for name in ("verl", "verl.utils", "verl.single_controller", "verl.single_controller.base"):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [str(folder.joinpath(*name.split(".")))]
        transformers = types.ModuleType("transformers")  # for one annotation
        transformers.PreTrainedTokenizer = object  # type: ignore[attr-defined]
        sys.modules.setdefault("transformers", transformers)
    return importlib.import_module("verl.single_controller.base.decorator"), importlib.import_module("verl.protocol")


def medians(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """CPU milliseconds of each side; the sides take turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = time.process_time()
            side()
            times[name].append((time.process_time() - start) * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-verl", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    sides: dict[str, Callable[[], object]] = {
        "plan 1024 ranks x 7 columns, ms": planning(Trainer.train, 1024, 7),
        "plan 1024 ranks x 256 columns, ms": planning(Trainer.train, 1024, 256),
        "plan 1024 dp ranks x 7 columns, ms": planning(Trainer.every, 1024, 7),
        "plan 1024 dp ranks x 256 columns, ms": planning(Trainer.every, 1024, 256),
        "plan 4096 ranks x 256 columns, ms": planning(Trainer.train, 4096, 256),
        "plan 16384 ranks x 256 columns, ms": planning(Trainer.train, 16384, 256),
        "bind 100 methods, ms": binding(100),
    }
    problem = None
    with tempfile.TemporaryDirectory() as folder:
        if not options.without_verl:
            try:
                sides["plan and cut 1024 dp ranks x 7 columns, ms"] = planning_and_cutting(1024, 7)
                sides["plan and cut 1024 dp ranks x 256 columns, ms"] = planning_and_cutting(1024, 256)
                sides["verl 1024 dp ranks x 7 columns, ms"] = verl_dispatch(Path(folder), 1024, 7)
                sides["verl 1024 dp ranks x 256 columns, ms"] = verl_dispatch(Path(folder), 1024, 256)
            except (ImportError, subprocess.CalledProcessError) as error:
                problem = f"{type(error).__name__}: {error}"
        result = medians(sides, options.rounds)
    result["import, ms"] = importing() * 1000
    result.update(ratios(result))
    report(result, problem)


def ratios(result: dict[str, float]) -> dict[str, float]:
    """The figures that can be compared between machines."""
    ours, theirs = "plan 1024 dp ranks x {} columns, ms", "verl 1024 dp ranks x {} columns, ms"
    found = {
        "256 columns / 7 columns": result[ours.format(256)] / result[ours.format(7)],
        "16384 ranks / 1024 ranks": result["plan 16384 ranks x 256 columns, ms"]
        / result["plan 1024 ranks x 256 columns, ms"],
    }
    for columns in (7, 256):
        if theirs.format(columns) in result:
            found[f"verl / fanfold, plan, {columns} columns"] = (
                result[theirs.format(columns)] / result[ours.format(columns)]
            )
            cut = result[f"plan and cut 1024 dp ranks x {columns} columns, ms"]
            found[f"verl / fanfold, plan and cut, {columns} columns"] = result[theirs.format(columns)] / cut
    return found


def report(result: dict[str, float], problem: str | None) -> None:
    """Print the table and the JSON line."""
    width = max(map(len, result))
    for name, value in result.items():
        limit = f"  (at most {LIMITS[name]})" if name in LIMITS else ""
        print(f"{name.ljust(width)}  {value:10.2f}{limit}")
    if problem:
        print(f"verl is not beside it: {problem}")
    print(
        json.dumps(
            {"bench": "dispatch", **{name: round(value, 3) for name, value in result.items()}, "without_verl": problem}
        )
    )


if __name__ == "__main__":
    main()
