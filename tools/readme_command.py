"""Print the one command of a README section, so that what runs every day is what the README promises."""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def section(text: str, heading: str) -> str:
    """The text below `## heading`, up to the next heading of that level.

    Raises:
        ValueError: there is no such heading, or more than one.
    """
    found = re.findall(rf"^## {re.escape(heading)}$\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"got {len(found)} headings '## {heading}', expected exactly 1")
    return str(found[0])


def command_of(text: str, heading: str) -> str:
    """The only line of the only bash block in a section.

    Raises:
        ValueError: no block or several, or a block of several lines.
    """
    blocks: list[str] = re.findall(r"^```bash\n(.*?)^```$", section(text, heading), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    if len(blocks) != 1 or len(lines) != 1:
        raise ValueError(
            f"'## {heading}' holds {len(blocks)} bash blocks with {len(lines)} lines, expected 1 block of 1 line"
        )
    return lines[0]


if __name__ == "__main__":
    print(command_of(README.read_text(encoding="utf-8"), sys.argv[1]))
