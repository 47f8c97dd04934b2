"""What type checkers see: a marked method keeps its signature, so a wrong argument is flagged."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
from __future__ import annotations

from typing import Annotated, Any, overload

from fanfold.dispatch import Dispatch, Execute, Replicate, Rows, Shard, make_nd_compute_dataproto_dispatch_fn, register


class Trainer:
    @register(Dispatch.DP_COMPUTE_PROTO, uneven="pad")
    def train(self, batch: Annotated[Rows[int], Shard], lr: Annotated[float, Replicate] = 0.1) -> Rows[int]:
        return batch

    @register(make_nd_compute_dataproto_dispatch_fn("train"), Execute.ALL, merge={"loss": "mean"})
    async def later(self, batch: Rows[int]) -> dict[str, float]:
        return {"loss": 1.0}

    @overload
    def either(self, x: int) -> int: ...
    @overload
    def either(self, x: str) -> str: ...
    @register()
    def either(self, x: int | str) -> int | str:
        return x

    @register({"dispatch_fn": lambda group, x: (([x],), {}), "collect_fn": lambda group, outputs: outputs})
    def custom(self, x: int) -> int:
        return x


trainer = Trainer()
rows = Rows([1, 2])
out: Rows[int] = trainer.train(rows, lr=0.5)
number: int = trainer.either(1)
text: str = trainer.either("x")
one: int = rows[0]
some: Rows[int] = rows[:1]


async def use() -> float:
    return (await trainer.later(rows))["loss"]


trainer.train("x")  # wrong
trainer.train(rows, 0.5, 3)  # wrong
trainer.train(rows, rate=0.5)  # wrong
wrong: str = trainer.train(rows)  # wrong
trainer.either(1.5)  # wrong
trainer.later("x")  # wrong
trainer.custom("x")  # wrong
register(Dispatch.NO_SUCH_MODE)  # wrong
register(uneven="chunk")  # wrong
register(Dispatch.ONE_TO_ALL, inputs="mapped")  # wrong
register(Dispatch.ONE_TO_ALL, timeout="1m")  # wrong
"""
WRONG = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}


def flagged(command: list[str], folder: Path) -> set[int]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    lines = {int(number) for number in re.findall(r"program\.py:(\d+):(?:\d+)?:? *-? error", done.stdout)}
    assert lines, done.stdout + done.stderr
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.timeout(120)
def test_mypy_flags_exactly_the_wrong_lines(folder: Path) -> None:
    (folder / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    assert flagged([sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), "program.py"], folder) == WRONG


@pytest.mark.timeout(120)
def test_pyright_flags_exactly_the_wrong_lines(folder: Path) -> None:
    # That the coroutine is not awaited is another matter than its wrong argument.
    (folder / "pyrightconfig.json").write_text('{"reportUnusedCoroutine": false}')
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "program.py"]
    assert flagged(command, folder) == WRONG
