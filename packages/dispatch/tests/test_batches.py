from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from dispatch_fakes import Table, table
from fanfold.dispatch import (
    BatchLike,
    BatchTypeError,
    Dispatch,
    Rows,
    batch_type_of,
    register,
    register_batch_type,
    run_inline,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def test_a_batch_is_known_by_its_shape() -> None:
    batch_type = batch_type_of(table(3))
    assert batch_type is not None
    assert batch_type.name == "Table"
    assert batch_type.length(table(3)) == 3
    assert batch_type.rows(table(3), 1, 2) == Table({"x": [1], "name": ["row 1"]})
    assert batch_type.concat([table(1), table(2)]).columns["x"] == [0, 0, 1]
    assert batch_type.narrowed(table(1), ["x"]) == Table({"x": [0]})
    assert isinstance(table(1), BatchLike)
    assert isinstance(Rows(), BatchLike)


@pytest.mark.parametrize("value", [[1, 2], (1,), "text", b"", {"a": 1}, 3, None, range(3), {1}, object(), len, Table])
def test_everything_else_goes_whole(value: Any) -> None:
    assert batch_type_of(value) is None


class SlicedOnly:
    """A batch whose rows come from a method `slice`, as a future's do."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.items = list(rows)

    def __len__(self) -> int:
        return len(self.items)

    def slice(self, start: int, stop: int) -> SlicedOnly:
        return type(self)(self.items[start:stop])

    def chunk(self, chunks: int) -> list[SlicedOnly]:
        raise NotImplementedError

    @staticmethod
    def concat(parts: Sequence[SlicedOnly]) -> SlicedOnly:
        return SlicedOnly([row for part in parts for row in part.items])


def test_rows_may_come_from_slice() -> None:
    batch_type = batch_type_of(SlicedOnly(range(4)))
    assert batch_type is not None
    assert batch_type.rows(SlicedOnly(range(4)), 1, 3).items == [1, 2]
    assert batch_type.narrowed(SlicedOnly([1]), ["x"]).items == [1]


def test_rows_are_picked_one_by_one_where_the_type_cannot_take() -> None:
    batch_type = batch_type_of(SlicedOnly([]))
    assert batch_type is not None
    assert batch_type.pick(SlicedOnly([5, 6, 7]), [2, 0, 2]).items == [7, 5, 7]
    assert batch_type.pick(SlicedOnly([5, 6, 7]), []).items == []
    assert batch_type.pick(SlicedOnly([5, 6, 7, 8]), [1, 2, 2, 3, 0]).items == [6, 7, 7, 8, 5]


class Counting(SlicedOnly):
    """Says what was asked of it, as a batch with metadata would show it."""

    asked: ClassVar[list[str]] = []

    def select_idxs(self, rows: list[int]) -> Counting:
        self.asked.append(f"take {rows}")
        return Counting([self.items[row] for row in rows])

    @staticmethod
    def concat(parts: Sequence[SlicedOnly], *, merge: Any = None) -> Counting:
        Counting.asked.append(f"concat {len(parts)} {merge}")
        return Counting([row for part in parts for row in part.items])


def test_padding_takes_rows_and_never_puts_batches_together() -> None:
    """To put a batch and its own rows together would merge its metadata with itself."""

    class Worker:
        @register(Dispatch.DP_COMPUTE_PROTO, uneven="pad")
        def rows(self, batch: Any) -> Any:
            return list(batch.items)

    Counting.asked.clear()
    assert run_inline("rows", [Worker(), Worker()], Counting([5, 6, 7])) == [[5, 6], [7, 7]]
    assert Counting.asked == ["take [2, 2]"]


def test_merge_rules_reach_a_concat_that_has_them() -> None:
    class Worker:
        @register(Dispatch.DP_COMPUTE_PROTO, merge={"loss": "mean"})
        def same(self, batch: Any) -> Any:
            return batch

    Counting.asked.clear()
    assert run_inline("same", [Worker(), Worker()], Counting([5, 6, 7])).items == [5, 6, 7]
    assert Counting.asked == ["concat 2 {'loss': 'mean'}"]


def test_parts_are_even_unless_the_type_has_its_own() -> None:
    batch_type = batch_type_of(Rows())
    assert batch_type is not None
    assert batch_type.parts(Rows(range(5)), 2) == [Rows([0, 1, 2]), Rows([3, 4])]


@dataclass
class Foreign:
    """A class of somebody else: a registered batch that has nothing of the shape."""

    items: list[int]


@dataclass
class ForeignChild(Foreign):
    pass


def test_a_foreign_type_is_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    assert batch_type_of(Foreign([1])) is None
    taught = register_batch_type(
        Foreign,
        length=lambda batch: len(batch.items),
        rows=lambda batch, start, stop: Foreign(batch.items[start:stop]),
        concat=lambda parts: Foreign([item for part in parts for item in part.items]),
        take=lambda batch, rows: Foreign([batch.items[row] for row in rows]),
        chunk=lambda batch, count: [batch] * count,
        accepts=lambda batch: bool(batch.items),
    )
    assert batch_type_of(Foreign([1])) is taught
    assert batch_type_of(ForeignChild([1])) is taught
    assert batch_type_of(Foreign([])) is None
    assert taught.pick(Foreign([5, 6]), [1]).items == [6]
    assert taught.parts(Foreign([5]), 2) == [Foreign([5]), Foreign([5])]


def test_registration_wins_over_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    register_batch_type(Table, nbytes=lambda _: 8)
    batch_type = batch_type_of(table(1))
    assert batch_type is not None
    assert batch_type.nbytes is not None
    assert batch_type.rows(table(2), 0, 1) == table(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"Foreign has no rows of its own; give rows=lambda batch, a, b: \.\.\."),
        ({"rows": lambda b, _a, _z: b}, r"Foreign has no concat of its own; give concat=lambda batches: \.\.\."),
        ({"rows": 3, "concat": len}, "rows of Foreign is 3, expected a function"),
        ({"rows": len, "concat": len, "slices": len}, "got slices, expected only accepts, chunk, column"),
    ],
)
def test_a_type_that_lacks_something_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(BatchTypeError, match=message):
        register_batch_type(Foreign, **arguments)


def test_only_classes_are_batch_types() -> None:
    with pytest.raises(BatchTypeError, match=r"got Rows\(\[\]\), expected a class"):
        register_batch_type(Rows())  # type: ignore[arg-type]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test register types that the next one does not know."""
    monkeypatch.setattr("fanfold.dispatch.batches._registered", {})
    monkeypatch.setattr("fanfold.dispatch.batches._found", {})


PACKAGE = """
class Ledger:
    def __init__(self, rows): self.rows = list(rows)
    def __len__(self): return len(self.rows)

def teach(register_batch_type):
    register_batch_type(
        Ledger, rows=lambda x, a, b: Ledger(x.rows[a:b]), concat=lambda xs: Ledger(r for x in xs for r in x.rows)
    )
"""

PROGRAM = """
import sys
from fanfold.dispatch import Rows, batch_type_of, register, Dispatch, run_inline

class Worker:
    @register(Dispatch.DP_COMPUTE_PROTO)
    def double(self, ledger):
        return type(ledger)(2 * row for row in ledger.rows)

class Stranger: pass

batch_type_of(Stranger())
assert "ledgers.types" not in sys.modules, "loaded before a value of its package was met"
from ledgers.types import Ledger
assert run_inline("double", [Worker(), Worker()], Ledger([1, 2, 3])).rows == [2, 4, 6]
"""


def with_entry_point(folder: Path, name: str, package: str, target: str) -> None:
    (folder / "ledgers").mkdir()
    (folder / "ledgers" / "__init__.py").write_text("")
    (folder / "ledgers" / "types.py").write_text(package)
    info = folder / "ledgers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ledgers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fanfold.batch_types]\n{name} = {target}\n")


def run_program(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    start = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    return subprocess.run(
        [sys.executable, "-c", start + program], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_package_teaches_its_types_by_an_entry_point(tmp_path: Path) -> None:
    with_entry_point(tmp_path, "ledgers", PACKAGE, "ledgers.types:teach")
    done = run_program(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_broken_entry_point_is_named_every_time(tmp_path: Path) -> None:
    with_entry_point(tmp_path, "ledgers", PACKAGE, "ledgers.types:misspelt")
    program = """
from fanfold.dispatch import BatchTypeError, batch_type_of
from ledgers.types import Ledger
for attempt in range(2):
    try:
        batch_type_of(Ledger([]))
    except BatchTypeError as problem:
        assert "Ledger: entry point 'ledgers' of group 'fanfold.batch_types' failed (Attr" in str(problem), problem
    else:
        raise SystemExit(f"attempt {attempt} passed")
"""
    done = run_program(program, tmp_path)
    assert done.returncode == 0, done.stderr
