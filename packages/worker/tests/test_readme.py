"""Every Python block of the README and of the pages in docs/ runs; what they say is printed is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

PACKAGE = Path(__file__).parent.parent


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the parser, not ours
@pytest.mark.parametrize(("page", "blocks"), [("README.md", 6), ("docs/backends.md", 2)])
def test_every_block_runs(page: str, blocks: int, capsys: pytest.CaptureFixture[str]) -> None:
    document = Sybil(parsers=[PythonCodeBlockParser()], path=str(PACKAGE), patterns=[page]).parse(PACKAGE / page)
    examples = list(document.examples())
    assert len(examples) == blocks
    for example in examples:
        example.evaluate()
    assert capsys.readouterr().out.strip() in document.text
