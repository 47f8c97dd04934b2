"""The tour in the README runs."""

from pathlib import Path

import pytest
from sybil import Sybil
from sybil.example import Example
from sybil.parsers.markdown import PythonCodeBlockParser

README = Path(__file__).parent.parent / "README.md"


def examples() -> list[Example]:
    return list(Sybil(parsers=[PythonCodeBlockParser()]).parse(README).examples())


def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = examples()
    assert len(found) >= 2
    for example in found:
        example.evaluate()
