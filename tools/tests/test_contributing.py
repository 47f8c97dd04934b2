"""The commands of CONTRIBUTING.md, in a clone; of the last one, `nox`, only the list, since this is part of it."""

import subprocess
from pathlib import Path

import pytest

from tools.pages import blocks_that_run_in, shell
from tools.workspace import ROOT

pytestmark = [pytest.mark.installs, pytest.mark.timeout(1800)]


def test_three_commands_make_a_working_clone(tmp_path: Path) -> None:
    clone = tmp_path / "fanfold"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, timeout=120)
    (block,) = blocks_that_run_in(ROOT / "CONTRIBUTING.md", "tools/tests/test_contributing.py")
    *prepare, check = block.splitlines()
    assert check == ".uv/bin/uv run nox"

    listed = shell("\n".join([*prepare, f"{check} -l"]), clone, seconds=1700)

    assert "* tests(dispatch-" in listed
    assert shell(".venv/bin/python -c 'import fanfold.dispatch as door; print(door.__file__)'", clone).startswith(
        str(clone / "packages")
    )
    assert shell("git status --porcelain", clone) == ""
