"""Take the bash blocks out of a page and run them, so that what a page tells people to type is what was tried."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from tools.uv import uv_executable

BLOCK = re.compile(r"^(?P<above>[^\n]*)\n *```bash\n(?P<block>.*?)^ *```$", re.MULTILINE | re.DOTALL)
NOT_OURS = ("PYTHONPATH", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "VIRTUAL_ENV")


def bash_blocks(text: str) -> list[tuple[str, str]]:
    """The line above each bash block of a page, and what the block holds, without its indentation."""
    return [(match["above"].strip(), textwrap.dedent(match["block"])) for match in BLOCK.finditer(text)]


def runs_in(above: str) -> str | None:
    """The path in `<!-- runs in: path -->`, the comment above a block, or None."""
    match = re.fullmatch(r"<!-- runs in: (\S+) -->", above)
    return match[1] if match else None


def blocks_that_run_in(page: Path, runner: str) -> list[str]:
    """The bash blocks of a page that say that they run in this file."""
    return [block for above, block in bash_blocks(page.read_text(encoding="utf-8")) if runs_in(above) == runner]


def give_environment(folder: Path) -> None:
    """Make an empty .venv in a folder where there is none, with the Python that runs us."""
    if not (folder / ".venv").exists():
        base = Path(sys.base_prefix) / "bin" / "python3"
        subprocess.run([uv_executable(), "venv", "-q", "--python", base, folder / ".venv"], check=True, timeout=60)


def shell(command: str, folder: Path, seconds: float = 800) -> str:
    """What a command prints, run by bash in a folder, with our uv first on the PATH and nothing of our environment.

    Raises:
        RuntimeError: it failed; the text holds the command and all that it printed.
    """
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    environment["PATH"] = os.pathsep.join((str(Path(uv_executable()).parent), environment["PATH"]))
    line = ["bash", "-euo", "pipefail", "-c", command]
    answer = subprocess.run(
        line, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=seconds
    )
    if answer.returncode != 0:
        raise RuntimeError(f"status {answer.returncode} of\n{command}\n{answer.stdout}\n{answer.stderr}")
    return answer.stdout
