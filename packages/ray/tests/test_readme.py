"""The tour in the README runs, and prints what it says."""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

README = Path(__file__).parent.parent / "README.md"


def test_the_tour_prints_what_it_says(cluster: Cluster) -> None:
    document, printed = Sybil(parsers=[PythonCodeBlockParser()]).parse(README), io.StringIO()
    # To a place of its own: on standard output, Ray tells every driver of processes that died, in any number of lines.
    document.namespace.update(__name__="__main__", print=partial(print, file=printed))
    for example in document.examples():
        example.evaluate()
    promised = re.findall(r"```python\n.*?```\n\n```\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(promised) == 9
    assert printed.getvalue() == "".join(promised)
