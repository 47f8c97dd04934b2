"""Dispatch together with the libraries that it knows only by name. Tested alone, it has most of them not installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fanfold.dataproto import DataProto, DataProtoFuture
from fanfold.dispatch import Dispatch, plan_call, register, run_inline, spec_of

DISPATCH = Path(__file__).resolve().parent.parent / "packages" / "dispatch"
FILES = ("test_adapters.py", "test_freeze.py", "test_jagged.py", "test_readme.py")


class Scorer:
    @register(Dispatch.DP_COMPUTE_PROTO)
    def score(self, batch: Any) -> Any:
        batch.batch["score"] = batch.batch["x"] * 2
        return batch


class Four:
    world_size = 4

    def mesh(self, name: str) -> Any:
        raise AssertionError(f"nobody asks for a mesh, and least of all for {name}")


class Shelf:
    """A store of one batch, which may not be asked before the plan is made."""

    def __init__(self, batch: DataProto) -> None:
        self.batch, self.open = batch, False

    def put(self, value: object) -> Any:
        raise AssertionError("nothing is stored here")

    def header(self, handle: Any, timeout: float | None) -> Any:
        assert self.open
        return {"rows": len(self.batch)}

    def fetch(self, handles: Sequence[Any], timeout: float | None) -> list[Any]:
        assert self.open
        return [self.batch for _ in handles]

    def free(self, handles: Sequence[Any]) -> None: ...


def test_every_library_is_here_and_none_of_its_tests_is_skipped() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{file}" for file in FILES)]
    done = subprocess.run(command, cwd=DISPATCH, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout


def test_a_batch_with_jagged_columns_and_objects() -> None:
    lengths = torch.tensor([3, 0, 1, 2, 4])
    jagged = torch.nested.nested_tensor_from_jagged(torch.arange(10), torch.tensor([0, 3, 3, 4, 6, 10]))
    batch = DataProto.from_dict({"x": torch.arange(5), "tokens": jagged}, {"text": list("abcde")}, {"step": 1})
    out = run_inline("score", [Scorer() for _ in range(4)], batch)
    assert out.batch["score"].tolist() == [0, 2, 4, 6, 8]
    assert out.batch["tokens"].offsets().diff().tolist() == lengths.tolist()
    assert (out.non_tensor_batch["text"].tolist(), out.meta_info) == (list("abcde"), {"step": 1})
    assert batch.batch is not None
    assert sorted(map(str, batch.batch.keys())) == ["tokens", "x"]


def test_a_future_is_divided_without_waiting_for_it() -> None:
    shelf, spec = Shelf(DataProto.from_dict({"x": torch.arange(6)})), spec_of(Scorer.score)
    assert spec is not None
    plan = plan_call(spec, Scorer.score, Four(), (DataProtoFuture.of(shelf, [("header", "payload")]),), {})
    parts = [plan.value(piece) for piece in plan.pieces()]
    assert plan.batch_type is not None
    assert plan.batch_type.lazy is not None  # so that what is made of it is a future too
    shelf.open = True
    assert [part.get().batch["x"].tolist() for part in parts] == [[0, 1], [2, 3], [4], [5]]
