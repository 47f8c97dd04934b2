"""Every code block of the README and of these pages is run.

Python blocks run here, those of one page in one namespace. A bash block names what runs it, in a comment above it that
readers of the page do not see: `<!-- runs in: path -->`.
"""

import re
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/reference").glob("*.md"))]
PYTHON = Sybil(parsers=[PythonCodeBlockParser()], path=str(ROOT), patterns=["**/*.md"])
KNOWN = {"bash", "python", "text", "{image}", "{toctree}", "{eval-rst}", "{include}", "{note}", "{literalinclude}"}


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """The line above each block of a language, and what the block holds."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^(.*)\n```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path) -> None:
    for example in PYTHON.parse(page).examples():
        example.evaluate()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_bash_blocks_say_what_runs_them(page: Path) -> None:
    for above, block in blocks(page, "bash"):
        match = re.fullmatch(r"<!-- runs in: (\S+) -->", above.strip())
        assert match, f"{page.name}: no `<!-- runs in: path -->` above the block that begins with {block.splitlines()[0]!r}"
        assert (ROOT / match[1]).is_file(), f"{page.name}: {match[1]} does not exist"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_has_a_language_that_nobody_runs(page: Path) -> None:
    opened = re.findall(r"^```(\S*).*$", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert set(opened[::2]) <= KNOWN
    assert set(opened[1::2]) <= {""}


def test_the_readme_has_an_example_of_about_ten_lines() -> None:
    (_, example), *_ = blocks(ROOT / "README.md", "python")

    assert len([line for line in example.splitlines() if line.strip()]) <= 12
