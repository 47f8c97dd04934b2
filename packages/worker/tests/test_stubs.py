from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from fanfold.worker import GroupUsageError, WorkerGroup
from fanfold.worker.stubs import main

if TYPE_CHECKING:
    from pathlib import Path

TRAINERS = '''
    from __future__ import annotations
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path as Where
    from typing import TYPE_CHECKING, Any

    from fanfold.dispatch import Dispatch, Execute, Rows, make_nd_compute_dataproto_dispatch_fn, register
    from fanfold.worker import Worker

    if TYPE_CHECKING:
        from decimal import Decimal

    class Options:
        pass

    class Trainer(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def train(self, batch: Rows[int], lr: float = 0.1, *, options: Options | None = None) -> Rows[float]:
            """Train a step.

            And more.
            """
            return Rows(row * lr for row in batch)

        @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("train"))
        def counts(self, batch: Rows[int]) -> int:
            return len(batch)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def where(self, below: Where, /, *parts: str, **more: Decimal) -> Where:
            return below

        @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
        async def state(self) -> dict[str, Any]:
            return {}

        @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
        def later(self) -> int:
            return self.rank

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def steps(self) -> Iterator[int]:
            yield 1

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def untyped(self, x, y=1):
            return x

        @register(dispatch_mode={"dispatch_fn": lambda group, x: (([x, x],), {}), "collect_fn": lambda group, o: o})
        def custom(self, x: int) -> int:
            return x

        @register(dispatch_mode=Dispatch.ONE_TO_ALL, merge="mean")
        def loss(self) -> float:
            return 1.0

    class Better(Trainer):
        def counts(self, batch: Rows[int]) -> int:
            return 0
'''

USE = """
    from my_trainers import Trainer
    from my_trainers_group import TrainerGroup
    from fanfold.dispatch import PerRank, Rows
    from fanfold.worker import Call, WorkerGroup

    group = WorkerGroup([2], Trainer).typed(TrainerGroup)
    rows: Rows[float] = group.train(Rows([1, 2]), lr=0.5)
    counts: list[int] = group.counts(Rows([1, 2]))
    state: dict[str, object] = group.state()
    call: Call = group.later()
    steps: list[list[int]] = group.steps()
    again: Rows[float] = group.train(call, PerRank([0.1, 0.2]))
    part: TrainerGroup = group[0]
    text: str = group.train.explain(Rows([1]), 0.5)
    names: list[str] = group.worker_names
    group.train.options(timeout=3)(Rows([1]))
    group.train("x")  # wrong
    group.train(Rows([1]), rate=0.5)  # wrong
    group.counts()  # wrong
    group.where("x")  # wrong
    wrong: int = group.counts(Rows([1]))  # wrong
    group.close()
"""


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_trainers.py").write_text(textwrap.dedent(TRAINERS))
    (tmp_path / "use.py").write_text(textwrap.dedent(USE))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("my_trainers", "my_trainers_group"):
        sys.modules.pop(name, None)


@pytest.fixture(name="written")
def _written(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["my_trainers"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "my_trainers_group.py")
    return folder


def _wrong_lines(folder: Path) -> set[int]:
    return {number for number, line in enumerate((folder / "use.py").read_text().splitlines(), 1) if "# wrong" in line}


def test_signatures_and_results_are_those_of_the_driver(written: Path) -> None:
    text = (written / "my_trainers_group.py").read_text()
    for expected in (
        "(self, batch: Given[Rows[int]], lr: Given[float] = ..., *, options: Given[Options | None] = ...)",
        "-> Rows[float]:",
        '"""Train a step."""',
        "def __call__(self, batch: Given[Rows[int]]) -> list[int]:",
        "def __call__(self, below: Given[Where], /, *parts: str, **more: Decimal) -> list[Where]:",
        "def __call__(self) -> dict[str, Any]:",
        "def __call__(self) -> Call:",
        "def __call__(self) -> list[list[int]]:",
        "def __call__(self, x: Any, y: Any = ...) -> Any:",
        "def __call__(self, x: Given[int]) -> Any:",
        "from decimal import Decimal",
        "from pathlib import Path as Where",
        "class BetterGroup(WorkerGroup",
    ):
        assert expected in text
    compile(text, "my_trainers_group.py", "exec")


def test_group_is_the_class_it_was_written_for(written: Path) -> None:
    from my_trainers import Better, Trainer  # type: ignore[import-not-found]  # noqa: PLC0415
    from my_trainers_group import BetterGroup, TrainerGroup  # type: ignore[import-not-found]  # noqa: PLC0415

    with WorkerGroup([2], Trainer) as group:
        assert group.typed(TrainerGroup) is group
    with TrainerGroup([2], Trainer) as direct:
        assert len(direct.where(".")) == 2

    class Stale(WorkerGroup[Any]):
        registered_methods = ("train", "gone")

    with WorkerGroup([2], Better) as group:
        group.typed(BetterGroup)
        message = r"Stale does not fit Better: it lacks \[.*'counts'.*has \['gone'\] too many"
        with pytest.raises(GroupUsageError, match=message):
            group.typed(Stale)


def test_mypy_sees_what_is_wrong(written: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--disable-error-code=no-untyped-def",
        "use.py",
    ]
    done = subprocess.run(command, cwd=written, capture_output=True, text=True, check=False)
    told = {int(match[1]) for match in re.finditer(r"^use\.py:(\d+): error", done.stdout, re.MULTILINE)}
    assert told == _wrong_lines(written), done.stdout
    # Some versions add notes that point there, where what was called is defined.
    assert re.findall(r"^my_trainers_group\.py:\d+: error.*", done.stdout, re.MULTILINE) == []


def test_pyright_sees_what_is_wrong(written: Path) -> None:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "use.py", "my_trainers_group.py"]
    done = subprocess.run(command, cwd=written, capture_output=True, text=True, check=False)
    told = {int(match[1]) for match in re.finditer(r"use\.py:(\d+):\d+ - error", done.stdout)}
    assert told == _wrong_lines(written), done.stdout + done.stderr
    assert "my_trainers_group.py:" not in done.stdout


@pytest.mark.parametrize(
    ("module", "message"),
    [("no_such_module_at_all", "No module named 'no_such_module_at_all'"), ("json", "defines no class with methods")],
)
def test_modules_that_cannot_be(module: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([module]) == 2
    assert message in capsys.readouterr().err


def test_command_line(folder: Path) -> None:
    command = [sys.executable, "-m", "fanfold.worker.stubs", "my_trainers"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    assert (folder / "my_trainers_group.py").exists()
