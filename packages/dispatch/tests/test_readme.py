"""Every Python block of the README runs, top to bottom."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from unittest import SkipTest

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

PACKAGE = Path(__file__).parent.parent


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    sybil = Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], path=str(PACKAGE), patterns=["README.md"])
    document = sybil.parse(PACKAGE / "README.md")
    document.namespace["importlib"] = importlib
    blocks = list(document.examples())
    assert len(blocks) >= 3
    for block in blocks:
        with suppress(SkipTest):
            block.evaluate()
    printed = capsys.readouterr().out.strip()
    assert printed in document.text  # what it says is printed is what is printed
