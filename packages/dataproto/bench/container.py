"""The figures of the container: A and B alternate in one process, medians of the ratios, a table and JSON.

    python bench/container.py [--json FILE] [--verl FOLDER | --without-verl] [--tokens T] [--rounds N] [--only SECTION]

Times are CPU time of this process, one thread, so that what else the machine does changes little; only ratios count.
Batches: B rows of T tokens, four int64 and three float32 columns, eight object columns. verl 0.9.1 comes from the
registry, without its dependencies; where it cannot be had, that is said.
"""

import argparse
import gc
import json
import mmap
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensordict
import torch
from _verl import load

from fanfold.dataproto import DataProto

Action = Callable[[], Any]


class Figure(NamedTuple):
    """One line of the table: how long A takes in units of B."""

    name: str
    ratio: float
    a: float
    b: float
    target: str
    met: bool | None


class Bench:
    """Collects figures."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.figures = rounds, list[Figure]()

    def compare(
        self, name: str, a: Action, b: Action, *, most: float | None = None, least: float | None = None
    ) -> None:
        """Measure A and B in turns; `most` bounds A / B from above, `least` bounds B / A (how much faster A is)."""
        inner = [max(1, int(0.002 / max(_once(action, 1), 1e-7))) for action in (a, b)]
        times = [
            [_once(action, count) for action, count in zip((a, b), inner, strict=True)] for _ in range(self.rounds)
        ]
        one, other = (statistics.median(pair[at] for pair in times) for at in (0, 1))
        ratio = statistics.median(pair[0] / pair[1] for pair in times)
        target = f"at most {most:g}" if most else f"at least {least:g} times faster" if least else ""
        met = ratio <= most if most else 1 / ratio >= least if least else None
        self.figures.append(Figure(name, ratio, one, other, target, met))
        print(_line(self.figures[-1]), flush=True)


def _once(action: Action, count: int) -> float:
    gc.disable()
    start = time.process_time()
    for _ in range(count):
        action()
    passed = (time.process_time() - start) / count
    gc.enable()
    return passed


def _line(figure: Figure) -> str:
    mark = {True: "met", False: "NOT MET", None: ""}[figure.met]
    ratio = f"{figure.ratio:.3f}" if figure.ratio >= 0.01 else f"1/{1 / figure.ratio:.0f}"
    return f"{figure.name:<66} {ratio:>9}  {_time(figure.a):>9} {_time(figure.b):>9}  {figure.target:<24} {mark}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def columns(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    made = {f"i{at}": torch.randint(0, 1000, (rows, tokens)) for at in range(4)}
    return made | {f"f{at}": torch.rand(rows, tokens) for at in range(3)}


def objects(rows: int) -> dict[str, Any]:
    return {f"o{at}": np.array([f"row {row} of {at}" for row in range(rows)], dtype=object) for at in range(8)}


META = {"step": 3, "lr": 1e-5, "config": {"temperature": 0.7, "stop": ["a", "b"]}}


class Put:
    """An object store's put: pickle with buffers out of band, then copy stream and buffers to warm shared memory."""

    def __init__(self, size: int) -> None:
        self.memory = memoryview(mmap.mmap(-1, size + (1 << 20)))
        self.memory[:] = bytes(len(self.memory))

    def __call__(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        stream = pickle.dumps(value, 5, buffer_callback=buffers.append)
        position = 0
        for chunk in (memoryview(stream), *(buffer.raw() for buffer in buffers)):
            self.memory[position : position + len(chunk)] = chunk
            position += len(chunk) + -len(chunk) % 64


def sent(value: Any) -> Callable[[], Any]:
    """Pickle a value; what comes back reads it out of memory that must not be written."""
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(value, 5, buffer_callback=buffers.append)
    frozen = [memoryview(bytes(buffer.raw())) for buffer in buffers]
    return lambda: pickle.loads(stream, buffers=frozen)


def put_and_get(bench: Bench, verl: Any, tokens: int) -> None:
    for name, rows in (("large", 1024), ("RPC", 256), ("small", 16)):
        tensors, arrays = columns(rows, tokens if name != "small" else 1024), objects(rows)
        batch, bare = DataProto.from_dict(tensors, arrays, META), {key: value.numpy() for key, value in tensors.items()}
        size = sum(array.nbytes for array in bare.values())
        put = Put(2 * size)
        most = 1.3 if name != "small" else None
        bench.compare(
            f"put, {name} ({size >> 20} MiB) / numpy buffers", lambda: put(batch), lambda: put(bare), most=most
        )
        if verl is not None:
            other = verl.from_dict(tensors, arrays, dict(META))
            least = 7 if name != "small" else None
            bench.compare(f"put, {name} / verl", lambda: put(batch), lambda: put(other), least=least)
        bench.compare(f"get, {name} / dict of numpy arrays", sent(batch), sent(bare), most=2)
        get = sent(batch)
        bench.compare(f"get and touch every column, {name} / dict of arrays", lambda: get()._columns(), sent(bare))


def fields(bench: Bench, _verl: Any, _tokens: int) -> None:
    few, many = (
        DataProto.from_dict({f"c{at}": torch.zeros(256, (13 << 20) // count // 256) for at in range(count)}, None, META)
        for count in (7, 64)
    )
    put = Put(1 << 26)
    bench.compare("put, 64 fields / 7 fields of the same bytes", lambda: put(many), lambda: put(few), most=2)
    bench.compare("pickle in band, 64 fields / 7", lambda: pickle.dumps(many, 5), lambda: pickle.dumps(few, 5), most=2)


def rows(bench: Bench, verl: Any, tokens: int) -> None:
    tensors, arrays = columns(1024, tokens), objects(1024)
    batch = DataProto.from_dict(tensors, arrays, META)

    def slices() -> Any:
        return [
            ({name: column[start : start + 128] for name, column in tensors.items()},
             {name: array[start : start + 128] for name, array in arrays.items()})
            for start in range(0, 1024, 128)
        ]  # fmt: skip

    bench.compare("chunk(8) / plain slices", lambda: batch.chunk(8), slices, most=1.5)
    if verl is not None:
        other = verl.from_dict(tensors, arrays, dict(META))
        bench.compare("chunk(8) / verl", lambda: batch.chunk(8), lambda: other.chunk(8))
    pieces, parts = (
        batch.chunk(8),
        [{name: column[at * 128 : (at + 1) * 128] for name, column in tensors.items()} for at in range(8)],
    )
    index = torch.randperm(1024)

    def by_hand() -> Any:
        made = {name: torch.cat([part[name] for part in parts]) for name in tensors}
        return made, {name: np.concatenate([piece[name] for piece in pieces]) for name in arrays}

    def picked() -> Any:
        order = index.numpy()
        return {name: column[index] for name, column in tensors.items()}, {
            name: array[order] for name, array in arrays.items()
        }

    def repeated() -> Any:
        made = {name: column.repeat_interleave(2, 0) for name, column in tensors.items()}
        return made, {name: np.repeat(array, 2) for name, array in arrays.items()}

    bench.compare("concat / torch.cat", lambda: DataProto.concat(pieces), by_hand, most=1.1)
    bench.compare("index / torch", lambda: batch[index], picked, most=1.1)
    bench.compare("repeat(2) / torch", lambda: batch.repeat(2), repeated, most=1.1)
    with_buffer(bench, batch, pieces, index)


def with_buffer(bench: Bench, batch: DataProto, pieces: list[DataProto], index: torch.Tensor) -> None:
    out = batch.repeat(2)
    whole = {name: column[:1024] for name, column in out._columns().items()}

    def warm_copy() -> None:
        for name, column in batch._columns().items():
            whole[name].copy_(column)

    bench.compare("concat with out= / warm copy", lambda: DataProto.concat(pieces, out=out), warm_copy, most=1.3)
    bench.compare("index with out= / warm copy", lambda: batch.select_idxs(index, out=out), warm_copy, most=1.3)
    half = batch[:512]
    bench.compare("repeat(2) with out= / warm copy", lambda: half.repeat(2, out=out), warm_copy, most=1.3)


def mini_batches(bench: Bench, verl: Any, _tokens: int) -> None:
    tensors, arrays = columns(16, 1024), objects(16)
    batch = DataProto.from_dict(tensors, arrays, META)

    def slices() -> None:
        for start in range(0, 16, 2):
            _ = ({name: column[start : start + 2] for name, column in tensors.items()},
                 {name: array[start : start + 2] for name, array in arrays.items()})  # fmt: skip

    plain = batch.batch
    assert plain is not None

    def tensordict_slices() -> None:
        for start in range(0, 16, 2):
            _ = plain[start : start + 2], {name: array[start : start + 2] for name, array in arrays.items()}

    def ours() -> None:
        for _ in batch.mini_batches(2):
            pass

    def with_tensordict() -> None:
        for part in batch.mini_batches(2):
            _ = part.batch

    bench.compare("mini-batches, small / slices by hand", ours, slices, most=1.2)
    bench.compare("mini-batches with .batch / TensorDict slices by hand", with_tensordict, tensordict_slices, most=1.2)
    if verl is not None:
        other = verl.from_dict(tensors, arrays, dict(META))
        bench.compare("mini-batches / verl", ours, lambda: list(other.make_iterator(2, 1)))


def union(bench: Bench, verl: Any, _tokens: int) -> None:
    tensors = {f"c{at}": torch.rand(256, 1024) for at in range(64)}
    copies = {name: column.clone() for name, column in tensors.items()}
    one, two = DataProto.from_dict(tensors), DataProto.from_dict(copies)
    target = torch.empty(64, 256, 1024)

    def warm_copy() -> None:
        for at, column in enumerate(tensors.values()):
            target[at].copy_(column)

    bench.compare("union of equal columns, 64 fields / warm copy", lambda: one.union(two), warm_copy)
    bench.compare("union with itself / warm copy", lambda: one.union(one), warm_copy)
    if verl is not None:
        first, second = verl.from_dict(tensors), verl.from_dict(copies)
        bench.compare("union of equal columns / verl", lambda: one.union(two), lambda: first.union(second))


def imports(bench: Bench, _verl: Any, _tokens: int) -> None:
    def cpu(statement: str) -> float:
        script = f"import time; start = time.process_time(); {statement}; print(time.process_time() - start)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        return float(done.stdout)

    statements = "import fanfold.dataproto", "import torch, tensordict"
    pairs = [[cpu(statement) for statement in statements] for _ in range(max(3, bench.rounds // 3))]
    one, other = (statistics.median(pair[at] for pair in pairs) for at in (0, 1))
    bench.figures.append(
        Figure("import (CPU time) / torch and tensordict", one / other, one, other, "at most 1.05", one / other <= 1.05)
    )
    print(_line(bench.figures[-1]), flush=True)


SECTIONS: dict[str, Callable[[Bench, Any, int], None]] = {
    "put": put_and_get,
    "fields": fields,
    "rows": rows,
    "mini-batches": mini_batches,
    "union": union,
    "import": imports,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--verl", type=Path, default=Path(tempfile.gettempdir()) / "fanfold-bench-container")
    parser.add_argument("--without-verl", action="store_true")
    parser.add_argument("--tokens", type=int, default=2048, help="T of the larger batches; 8192 needs 3 GB of memory")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", default=list(SECTIONS), choices=SECTIONS, help="some of the sections")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = None if options.without_verl else load(options.verl)
    verl, missing = (None, found) if found is None or isinstance(found, str) else (found, None)
    versions = f"torch {torch.__version__}, tensordict {tensordict.__version__}, numpy {np.__version__}"
    print(f"{versions}, T = {options.tokens}; {missing or ('verl 0.9.1' if verl else 'without verl')}")
    print(f"{'A / B':<66} {'ratio':>9}  {'A':>9} {'B':>9}  target")
    bench = Bench(options.rounds)
    for name in options.only:
        SECTIONS[name](bench, verl, options.tokens)
    if options.json:
        report = {
            "versions": versions,
            "verl": missing or bool(verl),
            "figures": [figure._asdict() for figure in bench.figures],
        }
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
