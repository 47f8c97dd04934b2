"""Every code block of the README and of these pages is run.

Python blocks run here, those of one page in one namespace. A bash block names what runs it, in a comment above it that
readers of the page do not see: `<!-- runs in: path -->`.
"""

import re
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser

from tools.pages import bash_blocks, runs_in

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/reference/*.md"))]
PYTHON = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)],
    path=str(ROOT),
    patterns=["**/*.md"],
)
KNOWN = {"bash", "python", "text", "{eval-rst}", "{image}", "{literalinclude}", "{toctree}"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@each_page
def test_python_blocks_run(page: Path) -> None:
    for example in PYTHON.parse(page).examples():
        example.evaluate()


@each_page
def test_bash_blocks_say_what_runs_them(page: Path) -> None:
    for above, block in bash_blocks(page.read_text(encoding="utf-8")):
        runner = runs_in(above)
        assert runner, f"{page.name}: no `<!-- runs in: path -->` above {block.splitlines()[0]!r}"
        assert (ROOT / runner).is_file(), f"{page.name}: {runner} does not exist"


@each_page
def test_no_block_has_a_language_that_nobody_runs(page: Path) -> None:
    fences: list[str] = re.findall(r"^ *```(\S*)", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert set(fences[::2]) <= KNOWN
    assert set(fences[1::2]) <= {""}


def test_the_example_of_the_readme_has_about_ten_lines() -> None:
    (example,) = PYTHON.parse(ROOT / "README.md").examples()

    assert len([line for line in example.parsed.splitlines() if line.strip()]) <= 10
