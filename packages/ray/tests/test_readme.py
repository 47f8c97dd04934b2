"""The tour in the README runs, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

if TYPE_CHECKING:
    import pytest
    from ray.cluster_utils import Cluster

README = Path(__file__).parent.parent / "README.md"


def test_the_tour_prints_what_it_says(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    document = Sybil(parsers=[PythonCodeBlockParser()]).parse(README)
    document.namespace["__name__"] = "__main__"
    for example in document.examples():
        example.evaluate()
    promised = re.findall(r"```python\n.*?```\n\n```\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(promised) == 8
    printed = capsys.readouterr().out.splitlines(keepends=True)
    # Ray tells every driver of processes that died, on standard output.
    assert "".join(line for line in printed if "(raylet)" not in line) == "".join(promised)
