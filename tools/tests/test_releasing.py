"""RELEASING.md from the first command to the built files, in a clone; uploading and pushing are left out."""

import subprocess
from pathlib import Path

import pytest

from tools.pages import blocks_that_run_in, shell
from tools.workspace import ROOT

pytestmark = [pytest.mark.installs, pytest.mark.timeout(900)]


def test_the_page_releases_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "Tester")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "tester@example.org")
    clone = tmp_path / "fanfold"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, timeout=120)
    fragment = clone / "packages/dispatch/changelog.d/trial.added.md"
    fragment.write_text("Something for the trial.\n", encoding="utf-8")
    shell("git add -A && git commit -qm 'a change to release'", clone)

    for block in blocks_that_run_in(ROOT / "RELEASING.md", "tools/tests/test_releasing.py"):
        shell(block, clone)

    assert sorted(path.name for path in (clone / "dist").iterdir() if path.name != ".gitignore") == [
        "fanfold_dispatch-0.1.1-py3-none-any.whl",
        "fanfold_dispatch-0.1.1.tar.gz",
    ]
    assert "- Something for the trial." in (clone / "packages/dispatch/CHANGELOG.md").read_text(encoding="utf-8")
